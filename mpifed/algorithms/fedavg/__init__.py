"""FedAvg, and methods whose clients and server extend its round."""
