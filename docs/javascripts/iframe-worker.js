// Browsers refuse workers to pages that were opened from disk; the search of this site is one. There a
// hidden frame takes its place: a script in it has the same globals and messages, only no thread.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const worker = new URL(address, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = frame.contentDocument.createElement("script");
          script.src = new URL(source, worker);
          script.onload = resolve;
          script.onerror = reject;
          frame.contentDocument.body.append(script);
        });
      this.inside = new Promise((resolve) => {
        frame.onload = async () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = async (...sources) => {
            for (const source of sources) await load(source);
          };
          await load(worker);
          resolve(inside);
        };
      });
      document.body.append(frame);
      this.terminate = () => frame.remove();
    }
    async postMessage(data) {
      const inside = await this.inside;
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
