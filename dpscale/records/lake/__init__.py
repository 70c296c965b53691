"""Tables with a log (Delta, Iceberg): the files of a version. Only logs are read here, no records."""
