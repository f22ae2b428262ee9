"""Models as a run has them, without a run."""

from __future__ import annotations

from typing import Any

from mpifed.components.registry import is_component, name_of
from mpifed.config.configuration import with_all_options
from mpifed.config.experiments import with_overrides
from mpifed.data.base import Description
from mpifed.models.base import Model
from mpifed.training import build


def make_model(model: Any, description: Description, **options: Any) -> Model:
    """Make the model of a run on data of this description.

    Parameters
    ----------
    model : str, callable or mapping
        What ``mpifed.run(model=...)`` takes: a name, a function, or a mapping with ``name`` and the
        options of the model.
    description : mpifed.dataset.Description
        What is known of the data; ``mpifed.dataset.alike`` makes one.
    **options
        Further keys of the configuration, as ``dtype="float64"``.

    Returns
    -------
    mpifed.model.Model
        The model; ``init`` draws a row of parameters, of which ``module`` makes a torch module.

    Raises
    ------
    InputError
        If an option is wrong, or the data do not suit the model.

    Examples
    --------
    >>> from mpifed.dataset import alike
    >>> pictures = alike("pictures", (28, 28), 62, 3, (20, 0, 5), "classification")
    >>> make_model({"name": "mlp", "hidden": [10]}, pictures).n_parameters
    8532
    """
    section = name_of(model, "model") if is_component(model) else model
    if isinstance(section, dict) and is_component(section.get("name")):
        section = {**section, "name": name_of(section["name"], "model")}
    configuration = with_all_options(with_overrides({}, {**options, "model": section}))
    return build.make_model(configuration, description)
