"""Tables with a log, Delta and Iceberg: which files a version has. Logs are read here, and no record."""
