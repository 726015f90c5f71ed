-- The newest version of rows that replace each other, under the name an analyst would guess.
CREATE OR REPLACE VIEW {database}.processes AS SELECT * FROM {database}.processes_versions FINAL;

CREATE OR REPLACE VIEW {database}.kernel_frequency AS SELECT * FROM {database}.kernel_frequency_versions FINAL;

CREATE OR REPLACE VIEW {database}.memcpy_bandwidth AS SELECT *, direction, source, target FROM {database}.memcpy_bandwidth_versions FINAL;

CREATE OR REPLACE VIEW {database}.lateness AS SELECT * FROM {database}.lateness_versions FINAL;

CREATE OR REPLACE VIEW {database}.stragglers AS SELECT * FROM {database}.stragglers_versions FINAL;
