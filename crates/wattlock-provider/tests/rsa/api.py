"""What an application sees of RSA through libcrypto's own interface, printed line by line.

Arguments: two private keys in PEM form. The same is printed whichever provider does the work; the provider's name
goes to standard error.
"""

import ctypes
import hashlib
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulong, c_void_p

crypto = ctypes.CDLL("libcrypto.so.3")
crypto.ERR_get_error.restype = c_ulong

POINTERS = """EVP_PKEY_CTX_new EVP_PKEY_CTX_new_from_name EVP_PKEY_CTX_dup EVP_MD_CTX_new EVP_PKEY_dup BIO_new_file
PEM_read_bio_PrivateKey EVP_sha1 EVP_sha256 EVP_sha512 EVP_PKEY_get0_provider"""
for function in POINTERS.split():
    getattr(crypto, function).restype = c_void_p
crypto.OSSL_PROVIDER_get0_name.restype = c_char_p
crypto.ERR_reason_error_string.restype = c_char_p
crypto.BN_bn2hex.restype = c_char_p

PKCS1, NONE, OAEP, PSS, TLS = 1, 3, 4, 6, 7
ALL = 0x87


def call(function, *arguments):
    return getattr(crypto, function)(*arguments)


def pointer(function, *arguments):
    return c_void_p(call(function, *arguments))


def errors():
    reasons = []
    while error := crypto.ERR_get_error():
        reasons.append(crypto.ERR_reason_error_string(c_ulong(error)))
    return reasons


def show(what, *values):
    print(what, *values, errors())


def short(data):
    return hashlib.sha256(data).hexdigest()[:16]


def take(function, context, *arguments, room=512):
    """Calls what writes bytes and their length; returns its result and the bytes."""
    buffer, length = ctypes.create_string_buffer(room), c_size_t(room)
    result = call(function, context, buffer, byref(length), *arguments)
    return result, buffer[: length.value] if result == 1 else b""


def load(path):
    """A key held by whoever is preferred: read, and made again from its parts."""
    file = pointer("BIO_new_file", path.encode(), b"r")
    read = pointer("PEM_read_bio_PrivateKey", file, None, None, None)
    parts, key = c_void_p(), c_void_p()
    making = pointer("EVP_PKEY_CTX_new_from_name", None, b"RSA", None)
    assert call("EVP_PKEY_todata", read, ALL, byref(parts)) == 1
    assert call("EVP_PKEY_fromdata_init", making) == 1
    assert call("EVP_PKEY_fromdata", making, byref(key), ALL, parts) == 1
    show("read and made", call("EVP_PKEY_eq", read, key))
    return key


def context(key, begin):
    made = pointer("EVP_PKEY_CTX_new", key, None)
    show(begin, call(begin, made))
    return made


def sign(what, made, data, **more):
    result, signature = take("EVP_PKEY_sign", made, data, c_size_t(len(data)), **more)
    show(what, result, len(signature), short(signature))


key, other = (load(path) for path in sys.argv[1:])
print(crypto.OSSL_PROVIDER_get0_name(pointer("EVP_PKEY_get0_provider", key)).decode(), file=sys.stderr)
sha1, sha256, sha512 = (pointer(f"EVP_{name}") for name in ("sha1", "sha256", "sha512"))

# The key.
copy = pointer("EVP_PKEY_dup", key)
show("equal", call("EVP_PKEY_eq", key, copy), call("EVP_PKEY_eq", key, other))
for question in ("EVP_PKEY_get_bits", "EVP_PKEY_get_security_bits", "EVP_PKEY_get_size"):
    show(question, call(question, copy))
name = ctypes.create_string_buffer(80)
show("digest", call("EVP_PKEY_get_default_digest_name", key, name, c_size_t(80)), name.value)
made = pointer("EVP_PKEY_CTX_new", key, None)
for check in ("check", "public_check", "private_check", "pairwise_check", "param_check", "public_check_quick"):
    show(check, call(f"EVP_PKEY_{check}", made))
for part in (b"n", b"e", b"d", b"rsa-factor1", b"rsa-factor3", b"rsa-exponent2", b"rsa-coefficient1", b"none"):
    number = c_void_p()
    found = call("EVP_PKEY_get_bn_param", key, part, byref(number))
    show(part, found, short(crypto.BN_bn2hex(number)) if found else "")

# A message in pieces: signed twice, carried on, begun again.
message, parameters = pointer("EVP_MD_CTX_new"), c_void_p()
show("begin", call("EVP_DigestSignInit", message, byref(parameters), sha256, None, key))
for piece in (b"abc", b"def"):
    show("update", call("EVP_DigestUpdate", message, piece, c_size_t(3)))
    for _ in range(2):
        result, signature = take("EVP_DigestSignFinal", message)
        show("final", result, len(signature), short(signature))
length = c_size_t()
show("length", call("EVP_DigestSignFinal", message, None, byref(length)), length.value)
show("no room", take("EVP_DigestSignFinal", message, room=100)[0])
show("again", call("EVP_DigestSignInit", message, None, None, None, None))
result, signature = take("EVP_DigestSign", message, b"abcdef", c_size_t(6))
show("whole", result, short(signature))

# What may be changed under way, and what may not.
message, parameters, value, digest = pointer("EVP_MD_CTX_new"), c_void_p(), c_int(), c_void_p()
show("begin", call("EVP_DigestSignInit", message, byref(parameters), sha256, None, key))
show("same digest", call("EVP_PKEY_CTX_set_signature_md", parameters, sha256))
show("other digest", call("EVP_PKEY_CTX_set_signature_md", parameters, sha512))
show("its digest", call("EVP_PKEY_CTX_get_signature_md", parameters, byref(digest)), digest.value == sha256.value)
show("its padding", call("EVP_PKEY_CTX_get_rsa_padding", parameters, byref(value)), value.value)
show("no padding", call("EVP_PKEY_CTX_set_rsa_padding", parameters, NONE))
show("PSS", call("EVP_PKEY_CTX_set_rsa_padding", parameters, PSS))
show("its salt", call("EVP_PKEY_CTX_get_rsa_pss_saltlen", parameters, byref(value)), value.value)
show("salt", call("EVP_PKEY_CTX_set_rsa_pss_saltlen", parameters, -1))
show("its salt", call("EVP_PKEY_CTX_get_rsa_pss_saltlen", parameters, byref(value)), value.value)
show("mask", call("EVP_PKEY_CTX_set_rsa_mgf1_md", parameters, sha1))
result, signature = take("EVP_DigestSign", message, b"abcdef", c_size_t(6))
show("signed", result, len(signature))
for data in (b"abcdef", b"abcdeg"):
    message, parameters = pointer("EVP_MD_CTX_new"), c_void_p()
    call("EVP_DigestVerifyInit", message, byref(parameters), sha256, None, key)
    call("EVP_PKEY_CTX_set_rsa_padding", parameters, PSS)
    call("EVP_PKEY_CTX_set_rsa_mgf1_md", parameters, sha1)
    call("EVP_PKEY_CTX_set_rsa_pss_saltlen", parameters, 32)
    sizes = c_size_t(len(signature)), data, c_size_t(len(data))
    show("verified", call("EVP_DigestVerify", message, signature, *sizes))

# Hashes, with parameters in every order.
made = context(key, "EVP_PKEY_sign_init")
sign("bare", made, b"a" * 20)
show("digest", call("EVP_PKEY_CTX_set_signature_md", made, sha256))
sign("hash", made, b"a" * 32)
made = pointer("EVP_PKEY_CTX_dup", made)
sign("of a copy", made, b"a" * 32)
sign("wrong length", made, b"a" * 31)
sign("no room", made, b"a" * 32, room=255)
show("salt without PSS", call("EVP_PKEY_CTX_set_rsa_pss_saltlen", made, 20))
show("mask without PSS", call("EVP_PKEY_CTX_set_rsa_mgf1_md", made, sha1))
show("X9.31", call("EVP_PKEY_CTX_set_rsa_padding", made, 5))
sign("X9.31", made, b"a" * 32)
show("no padding", call("EVP_PKEY_CTX_set_rsa_padding", made, NONE))
show("OAEP", call("EVP_PKEY_CTX_set_rsa_padding", made, OAEP))
show("PSS", call("EVP_PKEY_CTX_set_rsa_padding", made, PSS))
show("no salt", call("EVP_PKEY_CTX_set_rsa_pss_saltlen", made, 0))
sign("PSS", made, b"a" * 32)
show("PKCS#1", call("EVP_PKEY_CTX_set_rsa_padding", made, PKCS1))
sign("PKCS#1", made, b"a" * 32)
show("PSS", call("EVP_PKEY_CTX_set_rsa_padding", made, PSS))
for salt in (300, -5):
    show("salt", call("EVP_PKEY_CTX_set_rsa_pss_saltlen", made, salt))
    sign("salt", made, b"a" * 32)
made = context(key, "EVP_PKEY_sign_init")
show("PSS alone", call("EVP_PKEY_CTX_set_rsa_padding", made, PSS))
show("no salt", call("EVP_PKEY_CTX_set_rsa_pss_saltlen", made, 0))
sign("SHA-1 then", made, b"a" * 20)
sign("wrong length", made, b"a" * 32)
made = context(key, "EVP_PKEY_verify_recover_init")
show("recovered", take("EVP_PKEY_verify_recover", made, bytes(255) + b"\1", c_size_t(256))[0])
show("name", call("EVP_PKEY_CTX_ctrl_str", made, b"digest", b"nonsense"))

# Decryption.
encrypting = context(key, "EVP_PKEY_encrypt_init")
show("OAEP", call("EVP_PKEY_CTX_set_rsa_padding", encrypting, OAEP))
result, sealed = take("EVP_PKEY_encrypt", encrypting, b"hello", c_size_t(5))
show("encrypted", result, len(sealed))
made = context(key, "EVP_PKEY_decrypt_init")
show("OAEP", call("EVP_PKEY_CTX_set_rsa_padding", made, OAEP))
made = pointer("EVP_PKEY_CTX_dup", made)
show("decrypted", *take("EVP_PKEY_decrypt", made, sealed, c_size_t(len(sealed))))
show("no room", take("EVP_PKEY_decrypt", made, sealed, c_size_t(len(sealed)), room=200)[0])
show("length", call("EVP_PKEY_decrypt", made, None, byref(length), sealed, c_size_t(len(sealed))), length.value)


class Param(ctypes.Structure):
    """OSSL_PARAM"""

    _fields_ = [("key", c_char_p), ("kind", c_uint), ("data", c_void_p), ("size", c_size_t), ("back", c_size_t)]


# The premaster secret of TLS, whose version is checked in silence.
encrypting = context(key, "EVP_PKEY_encrypt_init")
premaster = b"\3\3" + b"p" * 46
result, sealed = take("EVP_PKEY_encrypt", encrypting, premaster, c_size_t(48))
for client, negotiated in ((0x303, 0), (0x304, 0x303), (0x304, 0), (0, 0)):
    made = context(key, "EVP_PKEY_decrypt_init")
    show("TLS", call("EVP_PKEY_CTX_set_rsa_padding", made, TLS))
    versions = c_uint(client), c_uint(negotiated)
    names = b"tls-client-version", b"tls-negotiated-version"
    entries = [Param(n, 2, ctypes.cast(byref(v), c_void_p), 4, 0) for n, v in zip(names, versions)]
    show("versions", call("EVP_PKEY_CTX_set_params", made, (Param * 3)(*entries, Param())))
    result, secret = take("EVP_PKEY_decrypt", made, sealed, c_size_t(len(sealed)))
    show("secret", result, len(secret), secret == premaster)
    show("no room", take("EVP_PKEY_decrypt", made, sealed, c_size_t(len(sealed)), room=47)[0])
