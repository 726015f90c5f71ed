"""Takes records from Kafka, decodes them and passes them to the stages, many at once."""
