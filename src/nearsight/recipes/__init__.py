"""Everything that defines a run, as data: fields, YAML files, named recipes."""
