"""How every printed line of the four papers is run here: the line's method, setting and variant as
a method expression, hyper-parameters and changes to a protocol. One file of facts per paper."""
