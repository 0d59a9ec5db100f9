"""Whether libcrypto, asked for a key's parts and given them back, has the same key: prints `kept` or `changed`.

Argument: a private key in PEM form. OpenSSL 3.5 exchanges the primes behind the second where there are four or more.
"""

import ctypes
import sys
from ctypes import byref, c_char_p, c_void_p

crypto = ctypes.CDLL("libcrypto.so.3")
for function in ("BIO_new_file", "PEM_read_bio_PrivateKey", "EVP_PKEY_CTX_new_from_name"):
    getattr(crypto, function).restype = c_void_p
crypto.BN_bn2hex.restype = c_char_p
ALL = 0x87


def primes(key):
    found, number = [], c_void_p()
    while crypto.EVP_PKEY_get_bn_param(key, b"rsa-factor%d" % (len(found) + 1), byref(number)) == 1:
        found.append(crypto.BN_bn2hex(number))
        number = c_void_p()
    return found


file = c_void_p(crypto.BIO_new_file(sys.argv[1].encode(), b"r"))
read = c_void_p(crypto.PEM_read_bio_PrivateKey(file, None, None, None))
making = c_void_p(crypto.EVP_PKEY_CTX_new_from_name(None, b"RSA", None))
parts, made = c_void_p(), c_void_p()
assert crypto.EVP_PKEY_todata(read, ALL, byref(parts)) == 1
assert crypto.EVP_PKEY_fromdata_init(making) == 1
assert crypto.EVP_PKEY_fromdata(making, byref(made), ALL, parts) == 1
assert len(primes(read)) >= 4
print("kept" if primes(read) == primes(made) else "changed")
