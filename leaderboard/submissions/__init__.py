"""Results of others as one small file each: packed by `submit`, checked by `verify`, shown by the
site. Whatever an entry says is untrusted until it has been checked."""
