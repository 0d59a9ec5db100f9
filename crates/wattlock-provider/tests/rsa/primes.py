"""What libcrypto says of an RSA key of four primes that it made, read, or took from parameters, a line each.

A key's primes are shown by their places in the file that it is written into, so that two keys give the same lines. The
provider that holds each key goes to standard error.
"""

import ctypes
import sys
from ctypes import byref, c_char_p, c_size_t, c_uint, c_void_p

crypto = ctypes.CDLL("libcrypto.so.3")
for function in """EVP_PKEY_CTX_new_from_name EVP_PKEY_CTX_new_from_pkey EVP_PKEY_dup BIO_new BIO_s_mem
PEM_read_bio_PrivateKey EVP_PKEY_get0_provider""".split():
    getattr(crypto, function).restype = c_void_p
crypto.OSSL_PROVIDER_get0_name.restype = c_char_p
crypto.BN_bn2hex.restype = c_char_p

ALL = 0x87
NUMBERS = {"factor": 4, "exponent": 4, "coefficient": 3}


def pointer(function, *arguments):
    made = c_void_p(getattr(crypto, function)(*arguments))
    assert made.value, function
    return made


def good(function, *arguments):
    assert getattr(crypto, function)(*arguments) == 1, function


def generate():
    making, key = pointer("EVP_PKEY_CTX_new_from_name", None, b"RSA", None), c_void_p()
    good("EVP_PKEY_keygen_init", making)
    good("EVP_PKEY_CTX_set_rsa_keygen_bits", making, 4096)
    good("EVP_PKEY_CTX_set_rsa_keygen_primes", making, 4)
    good("EVP_PKEY_generate", making, byref(key))
    return key


def written_and_read(key):
    file = pointer("BIO_new", pointer("BIO_s_mem"))
    good("PEM_write_bio_PrivateKey", file, key, None, None, 0, None, None)
    return pointer("PEM_read_bio_PrivateKey", file, None, None, None)


class Param(ctypes.Structure):
    """OSSL_PARAM"""

    _fields_ = [("key", c_char_p), ("kind", c_uint), ("data", c_void_p), ("size", c_size_t), ("back", c_size_t)]


def from_numbers(key):
    """A key made by a program that has the numbers of this one, in their order."""
    names = [b"n", b"e", b"d"]
    names += [f"rsa-{what}{place + 1}".encode() for what, count in NUMBERS.items() for place in range(count)]
    entries, rooms = [], []
    for name in names:
        number = c_void_p()
        good("EVP_PKEY_get_bn_param", key, name, byref(number))
        room = ctypes.create_string_buffer(512)
        size = crypto.BN_bn2nativepad(number, room, 512)
        rooms.append(room)
        entries.append(Param(name, 2, ctypes.cast(room, c_void_p), size, 0))
    making, made = pointer("EVP_PKEY_CTX_new_from_name", None, b"RSA", None), c_void_p()
    good("EVP_PKEY_fromdata_init", making)
    good("EVP_PKEY_fromdata", making, byref(made), ALL, (Param * (len(entries) + 1))(*entries, Param()))
    return made


def numbers(key, what):
    found = []
    for place in range(NUMBERS[what]):
        number = c_void_p()
        good("EVP_PKEY_get_bn_param", key, f"rsa-{what}{place + 1}".encode(), byref(number))
        found.append(crypto.BN_bn2hex(number))
    return found


def show(name, key, file):
    holder = crypto.OSSL_PROVIDER_get0_name(pointer("EVP_PKEY_get0_provider", key)).decode()
    print(name, holder, file=sys.stderr)
    context = pointer("EVP_PKEY_CTX_new_from_pkey", None, key, None)
    checks = "check", "public_check", "private_check", "pairwise_check", "public_check_quick"
    print(name, *(f"{check} {getattr(crypto, 'EVP_PKEY_' + check)(context)}" for check in checks))
    for what in NUMBERS:
        in_file = numbers(file, what)
        print(name, what, *(in_file.index(number) for number in numbers(key, what)))
    print(name, "equal", crypto.EVP_PKEY_eq(key, file))


made = generate()
read = written_and_read(made)
show("generated", made, read)
show("copy", pointer("EVP_PKEY_dup", made), read)
show("read", read, read)
taken = from_numbers(read)
show("taken", taken, read)
show("rewritten", written_and_read(taken), read)
