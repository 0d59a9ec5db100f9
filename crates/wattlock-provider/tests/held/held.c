/*
 * A provider that holds keys and does not let go of them, as those of PKCS#11 tokens and TPMs do: RSA and EC keys that
 * sign and decrypt, and whose private part nobody else can have. Public libcrypto calls only.
 *
 * A key is read from PEM with the label HELD PRIVATE KEY: an OCTET STRING of "held" and a key as PKCS#8 has it. (A real
 * one has a reference there, or a key wrapped by hardware.) No other provider knows what to do with it.
 *
 * The work is done by OpenSSL's own provider in a library context of this provider's own.
 */
#include <openssl/bio.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/core_object.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/provider.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    OSSL_LIB_CTX   *inside;
    OSSL_PROVIDER  *plain;
} Provider;

/* A key of the context inside. With no private part it is one that was imported to be compared. */
typedef struct {
    Provider  *provider;
    EVP_PKEY  *inner;
    int        private;
} Held;

/* Key management */

static Held *
held_new(Provider *provider, EVP_PKEY *inner, int private)
{
    Held  *held = calloc(1, sizeof(*held));

    if (held != NULL) {
        *held = (Held) { provider, inner, private };
    }

    return held;
}

static void *
key_new(void *provider)
{
    return held_new(provider, NULL, 0);
}

static void
key_free(void *key)
{
    Held  *held = key;

    if (held != NULL) {
        EVP_PKEY_free(held->inner);
        free(held);
    }
}

static int
key_has(const void *key, int selection)
{
    const Held  *held = key;

    return held->inner != NULL && (held->private || !(selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY));
}

static int
key_match(const void *one, const void *other, int selection)
{
    EVP_PKEY  *a = ((const Held *) one)->inner, *b = ((const Held *) other)->inner;

    return selection & OSSL_KEYMGMT_SELECT_KEYPAIR ? EVP_PKEY_eq(a, b) == 1 : EVP_PKEY_parameters_eq(a, b) == 1;
}

/* What a reference leads to: the decoder below gives one away. */
static void *
key_load(const void *reference, size_t len)
{
    Held  *held = NULL;

    if (len == sizeof(held)) {
        held = *(Held **) reference;
        *(Held **) reference = NULL;
    }

    return held;
}

/* The names of everything about a key that is no secret. */
static int
is_public(const char *name)
{
    static const char *const  names[] = {
        OSSL_PKEY_PARAM_BITS, OSSL_PKEY_PARAM_SECURITY_BITS, OSSL_PKEY_PARAM_MAX_SIZE, OSSL_PKEY_PARAM_DEFAULT_DIGEST,
        OSSL_PKEY_PARAM_GROUP_NAME, OSSL_PKEY_PARAM_RSA_N, OSSL_PKEY_PARAM_RSA_E, OSSL_PKEY_PARAM_PUB_KEY,
        OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, OSSL_PKEY_PARAM_EC_PUB_X, OSSL_PKEY_PARAM_EC_PUB_Y,
        OSSL_PKEY_PARAM_EC_POINT_CONVERSION_FORMAT,
    };
    size_t  i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], name) == 0) {
            return 1;
        }
    }

    return 0;
}

static int
key_get_params(void *key, OSSL_PARAM params[])
{
    for (; params->key != NULL; params++) {
        OSSL_PARAM  one[] = { *params, OSSL_PARAM_END };

        if (is_public(params->key) && EVP_PKEY_get_params(((Held *) key)->inner, one) == 1) {
            params->return_size = one[0].return_size;
        }
    }

    return 1;
}

static const OSSL_PARAM *
key_gettable(void *provider)
{
    static const OSSL_PARAM  list[] = {
        OSSL_PARAM_int(OSSL_PKEY_PARAM_BITS, NULL), OSSL_PARAM_int(OSSL_PKEY_PARAM_SECURITY_BITS, NULL),
        OSSL_PARAM_int(OSSL_PKEY_PARAM_MAX_SIZE, NULL), OSSL_PARAM_utf8_string(OSSL_PKEY_PARAM_DEFAULT_DIGEST, NULL, 0),
        OSSL_PARAM_utf8_string(OSSL_PKEY_PARAM_GROUP_NAME, NULL, 0), OSSL_PARAM_BN(OSSL_PKEY_PARAM_RSA_N, NULL, 0),
        OSSL_PARAM_BN(OSSL_PKEY_PARAM_RSA_E, NULL, 0), OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_PUB_KEY, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, NULL, 0),
        OSSL_PARAM_END,
    };

    (void) provider;
    return list;
}

/* Only what has no secret in it comes in or goes out. */
static int
key_import(void *key, int selection, const OSSL_PARAM params[])
{
    Held          *held = key;
    int            rsa = OSSL_PARAM_locate_const(params, OSSL_PKEY_PARAM_RSA_N) != NULL;
    EVP_PKEY_CTX  *making;
    int            made;

    if (selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) {
        return 0;
    }

    making = EVP_PKEY_CTX_new_from_name(held->provider->inside, rsa ? "RSA" : "EC", NULL);
    made = making != NULL && EVP_PKEY_fromdata_init(making) == 1
        && EVP_PKEY_fromdata(making, &held->inner, EVP_PKEY_PUBLIC_KEY, (OSSL_PARAM *) params) == 1;
    EVP_PKEY_CTX_free(making);

    return made;
}

static int
key_export(void *key, int selection, OSSL_CALLBACK *callback, void *argument)
{
    OSSL_PARAM  *params = NULL;
    int          done;

    if ((selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY)
        || EVP_PKEY_todata(((Held *) key)->inner, selection, &params) != 1)
    {
        return 0;
    }

    done = callback(params, argument);
    OSSL_PARAM_free(params);

    return done;
}

static const OSSL_PARAM *
key_types(int selection)
{
    return selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY ? NULL : key_gettable(NULL);
}

static const char *
ec_operation(int operation)
{
    return operation == OSSL_OP_SIGNATURE ? "ECDSA" : NULL;
}

typedef void (*Function)(void);

#define KEY_MANAGEMENT                                                                                             \
    { OSSL_FUNC_KEYMGMT_NEW, (Function) key_new }, { OSSL_FUNC_KEYMGMT_FREE, (Function) key_free },                 \
    { OSSL_FUNC_KEYMGMT_HAS, (Function) key_has }, { OSSL_FUNC_KEYMGMT_MATCH, (Function) key_match },               \
    { OSSL_FUNC_KEYMGMT_LOAD, (Function) key_load }, { OSSL_FUNC_KEYMGMT_GET_PARAMS, (Function) key_get_params },    \
    { OSSL_FUNC_KEYMGMT_GETTABLE_PARAMS, (Function) key_gettable },                                                 \
    { OSSL_FUNC_KEYMGMT_IMPORT, (Function) key_import }, { OSSL_FUNC_KEYMGMT_IMPORT_TYPES, (Function) key_types },   \
    { OSSL_FUNC_KEYMGMT_EXPORT, (Function) key_export }, { OSSL_FUNC_KEYMGMT_EXPORT_TYPES, (Function) key_types }

static const OSSL_DISPATCH  rsa_keys[] = { KEY_MANAGEMENT, { 0, NULL } };
static const OSSL_DISPATCH  ec_keys[] = {
    KEY_MANAGEMENT, { OSSL_FUNC_KEYMGMT_QUERY_OPERATION_NAME, (Function) ec_operation }, { 0, NULL },
};

/* Signatures and decryption: an operation of the context inside */

typedef struct {
    Provider      *provider;
    EVP_MD_CTX    *digest;  /* a message's */
    EVP_PKEY_CTX  *inner;   /* the digest's, or one of our own */
} Operation;

static void *
op_new(void *provider)
{
    Operation  *op = calloc(1, sizeof(*op));

    if (op != NULL) {
        op->provider = provider;
    }

    return op;
}

static void *
signature_new(void *provider, const char *properties)
{
    (void) properties;
    return op_new(provider);
}

static void
op_clear(Operation *op)
{
    if (op->digest == NULL) {
        EVP_PKEY_CTX_free(op->inner);
    }

    EVP_MD_CTX_free(op->digest);
    op->digest = NULL;
    op->inner = NULL;
}

static void
op_free(void *operation)
{
    if (operation != NULL) {
        op_clear(operation);
        free(operation);
    }
}

static void *
op_dup(void *operation)
{
    Operation  *from = operation, *to = op_new(from->provider);

    if (to != NULL && from->digest != NULL) {
        to->digest = EVP_MD_CTX_new();

        if (to->digest == NULL || EVP_MD_CTX_copy_ex(to->digest, from->digest) != 1) {
            op_free(to);
            return NULL;
        }

        to->inner = EVP_MD_CTX_get_pkey_ctx(to->digest);

    } else if (to != NULL && from->inner != NULL) {
        to->inner = EVP_PKEY_CTX_dup(from->inner);
    }

    return to;
}

static int
begin(Operation *op, Held *held, const OSSL_PARAM params[], int (*init)(EVP_PKEY_CTX *, const OSSL_PARAM *))
{
    op_clear(op);

    return held != NULL && held->private
        && (op->inner = EVP_PKEY_CTX_new_from_pkey(op->provider->inside, held->inner, NULL)) != NULL
        && init(op->inner, params) == 1;
}

static int
sign_init(void *operation, void *key, const OSSL_PARAM params[])
{
    return begin(operation, key, params, EVP_PKEY_sign_init_ex);
}

static int
sign(void *operation, unsigned char *to, size_t *len, size_t room, const unsigned char *text, size_t text_len)
{
    *len = room;
    return EVP_PKEY_sign(((Operation *) operation)->inner, to, len, text, text_len) == 1;
}

static int
digest_sign_init(void *operation, const char *name, void *key, const OSSL_PARAM params[])
{
    Operation  *op = operation;
    Held       *held = key;

    op_clear(op);

    return held != NULL && held->private && (op->digest = EVP_MD_CTX_new()) != NULL
        && EVP_DigestSignInit_ex(op->digest, &op->inner, name, op->provider->inside, NULL, held->inner, params) == 1;
}

static int
digest_sign_update(void *operation, const unsigned char *text, size_t len)
{
    return EVP_DigestSignUpdate(((Operation *) operation)->digest, text, len) == 1;
}

static int
digest_sign_final(void *operation, unsigned char *to, size_t *len, size_t room)
{
    *len = room;
    return EVP_DigestSignFinal(((Operation *) operation)->digest, to, len) == 1;
}

static int
decrypt_init(void *operation, void *key, const OSSL_PARAM params[])
{
    return begin(operation, key, params, EVP_PKEY_decrypt_init_ex);
}

static int
decrypt(void *operation, unsigned char *to, size_t *len, size_t room, const unsigned char *from, size_t from_len)
{
    *len = room;
    return EVP_PKEY_decrypt(((Operation *) operation)->inner, to, len, from, from_len) == 1;
}

static int
op_set_params(void *operation, const OSSL_PARAM params[])
{
    Operation  *op = operation;

    return op->inner != NULL && EVP_PKEY_CTX_set_params(op->inner, params) == 1;
}

static int
op_get_params(void *operation, OSSL_PARAM params[])
{
    Operation  *op = operation;

    return op->inner != NULL && EVP_PKEY_CTX_get_params(op->inner, params) == 1;
}

static const OSSL_PARAM *
op_settable(void *operation, void *provider)
{
    Operation  *op = operation;

    (void) provider;
    return op != NULL && op->inner != NULL ? EVP_PKEY_CTX_settable_params(op->inner) : NULL;
}

static const OSSL_PARAM *
op_gettable(void *operation, void *provider)
{
    Operation  *op = operation;

    (void) provider;
    return op != NULL && op->inner != NULL ? EVP_PKEY_CTX_gettable_params(op->inner) : NULL;
}

static const OSSL_DISPATCH  signature[] = {
    { OSSL_FUNC_SIGNATURE_NEWCTX, (Function) signature_new },
    { OSSL_FUNC_SIGNATURE_FREECTX, (Function) op_free },
    { OSSL_FUNC_SIGNATURE_DUPCTX, (Function) op_dup },
    { OSSL_FUNC_SIGNATURE_SIGN_INIT, (Function) sign_init },
    { OSSL_FUNC_SIGNATURE_SIGN, (Function) sign },
    { OSSL_FUNC_SIGNATURE_DIGEST_SIGN_INIT, (Function) digest_sign_init },
    { OSSL_FUNC_SIGNATURE_DIGEST_SIGN_UPDATE, (Function) digest_sign_update },
    { OSSL_FUNC_SIGNATURE_DIGEST_SIGN_FINAL, (Function) digest_sign_final },
    { OSSL_FUNC_SIGNATURE_SET_CTX_PARAMS, (Function) op_set_params },
    { OSSL_FUNC_SIGNATURE_SETTABLE_CTX_PARAMS, (Function) op_settable },
    { OSSL_FUNC_SIGNATURE_GET_CTX_PARAMS, (Function) op_get_params },
    { OSSL_FUNC_SIGNATURE_GETTABLE_CTX_PARAMS, (Function) op_gettable },
    { 0, NULL },
};

static const OSSL_DISPATCH  decryption[] = {
    { OSSL_FUNC_ASYM_CIPHER_NEWCTX, (Function) op_new },
    { OSSL_FUNC_ASYM_CIPHER_FREECTX, (Function) op_free },
    { OSSL_FUNC_ASYM_CIPHER_DUPCTX, (Function) op_dup },
    { OSSL_FUNC_ASYM_CIPHER_DECRYPT_INIT, (Function) decrypt_init },
    { OSSL_FUNC_ASYM_CIPHER_DECRYPT, (Function) decrypt },
    { OSSL_FUNC_ASYM_CIPHER_SET_CTX_PARAMS, (Function) op_set_params },
    { OSSL_FUNC_ASYM_CIPHER_SETTABLE_CTX_PARAMS, (Function) op_settable },
    { OSSL_FUNC_ASYM_CIPHER_GET_CTX_PARAMS, (Function) op_get_params },
    { OSSL_FUNC_ASYM_CIPHER_GETTABLE_CTX_PARAMS, (Function) op_gettable },
    { 0, NULL },
};

/* Reading a key: one decoder takes the armour off, and one for each type has a key if it is of that type. What is not
 * ours is somebody else's, and no failure. */

#define STRUCTURE "held"
#define MOST_BYTES 16384

static void *
decoder_new(void *provider)
{
    return provider;
}

static void
decoder_free(void *provider)
{
    (void) provider;
}

static int
decode_pem(void *context, OSSL_CORE_BIO *in, int selection, OSSL_CALLBACK *callback, void *argument,
           OSSL_PASSPHRASE_CALLBACK *ask, void *ask_argument)
{
    Provider       *provider = context;
    BIO            *file = BIO_new_from_core_bio(provider->inside, in);
    char           *name = NULL, *header = NULL;
    unsigned char  *text = NULL;
    long            len = 0;
    int             object = OSSL_OBJECT_PKEY, good = 1;

    (void) selection, (void) ask, (void) ask_argument;

    if (file != NULL && PEM_read_bio(file, &name, &header, &text, &len) == 1
        && strcmp(name, "HELD PRIVATE KEY") == 0)
    {
        OSSL_PARAM  params[] = {
            OSSL_PARAM_int(OSSL_OBJECT_PARAM_TYPE, &object),
            OSSL_PARAM_utf8_string(OSSL_OBJECT_PARAM_DATA_STRUCTURE, STRUCTURE, sizeof(STRUCTURE) - 1),
            OSSL_PARAM_octet_string(OSSL_OBJECT_PARAM_DATA, text, (size_t) len),
            OSSL_PARAM_END,
        };

        good = callback(params, argument);
    }

    OPENSSL_free(name);
    OPENSSL_free(header);
    OPENSSL_clear_free(text, (size_t) len);
    BIO_free(file);

    return good;
}

/* The key in there, if it is of that type. */
static EVP_PKEY *
read_key(Provider *provider, OSSL_CORE_BIO *in, const char *type)
{
    unsigned char         text[MOST_BYTES];
    const unsigned char  *at = text;
    BIO                  *file = BIO_new_from_core_bio(provider->inside, in);
    int                   len = file == NULL ? 0 : BIO_read(file, text, sizeof(text));
    ASN1_OCTET_STRING    *string = len > 0 ? d2i_ASN1_OCTET_STRING(NULL, &at, len) : NULL;
    EVP_PKEY             *key = NULL;

    if (string != NULL && ASN1_STRING_length(string) > 4 && memcmp(ASN1_STRING_get0_data(string), "held", 4) == 0) {
        at = ASN1_STRING_get0_data(string) + 4;
        key = d2i_AutoPrivateKey_ex(NULL, &at, ASN1_STRING_length(string) - 4, provider->inside, NULL);
    }

    if (key != NULL && !EVP_PKEY_is_a(key, type)) {
        EVP_PKEY_free(key);
        key = NULL;
    }

    ASN1_OCTET_STRING_free(string);
    BIO_free(file);

    return key;
}

static int
decode_as(Provider *provider, OSSL_CORE_BIO *in, OSSL_CALLBACK *callback, void *argument, const char *type)
{
    int        object = OSSL_OBJECT_PKEY, good = 1;
    EVP_PKEY  *inner = read_key(provider, in, type);
    Held      *held = inner == NULL ? NULL : held_new(provider, inner, 1);

    if (held != NULL) {
        OSSL_PARAM  params[] = {
            OSSL_PARAM_int(OSSL_OBJECT_PARAM_TYPE, &object),
            OSSL_PARAM_utf8_string(OSSL_OBJECT_PARAM_DATA_TYPE, (char *) type, strlen(type)),
            OSSL_PARAM_octet_string(OSSL_OBJECT_PARAM_REFERENCE, &held, sizeof(held)),
            OSSL_PARAM_END,
        };

        good = callback(params, argument);
        key_free(held);
    }

    return good;
}

static int
decode_rsa(void *provider, OSSL_CORE_BIO *in, int selection, OSSL_CALLBACK *callback, void *argument,
           OSSL_PASSPHRASE_CALLBACK *ask, void *ask_argument)
{
    (void) selection, (void) ask, (void) ask_argument;
    return decode_as(provider, in, callback, argument, "RSA");
}

static int
decode_ec(void *provider, OSSL_CORE_BIO *in, int selection, OSSL_CALLBACK *callback, void *argument,
          OSSL_PASSPHRASE_CALLBACK *ask, void *ask_argument)
{
    (void) selection, (void) ask, (void) ask_argument;
    return decode_as(provider, in, callback, argument, "EC");
}

#define DECODER(function)                                                                                         \
    { OSSL_FUNC_DECODER_NEWCTX, (Function) decoder_new }, { OSSL_FUNC_DECODER_FREECTX, (Function) decoder_free },   \
    { OSSL_FUNC_DECODER_DECODE, (Function) function }, { 0, NULL }

static const OSSL_DISPATCH  pem_decoder[] = { DECODER(decode_pem) };
static const OSSL_DISPATCH  rsa_decoder[] = { DECODER(decode_rsa) };
static const OSSL_DISPATCH  ec_decoder[] = { DECODER(decode_ec) };

/* The provider */

static const OSSL_ALGORITHM *
query(void *provider, int operation, int *no_cache)
{
    static const OSSL_ALGORITHM  keys[] = {
        { "RSA:rsaEncryption:1.2.840.113549.1.1.1", "provider=held", rsa_keys, "held RSA keys" },
        { "EC:id-ecPublicKey:1.2.840.10045.2.1", "provider=held", ec_keys, "held EC keys" },
        { NULL, NULL, NULL, NULL },
    };
    static const OSSL_ALGORITHM  signatures[] = {
        { "RSA:rsaEncryption:1.2.840.113549.1.1.1", "provider=held", signature, "by held RSA keys" },
        { "ECDSA", "provider=held", signature, "by held EC keys" },
        { NULL, NULL, NULL, NULL },
    };
    static const OSSL_ALGORITHM  ciphers[] = {
        { "RSA:rsaEncryption:1.2.840.113549.1.1.1", "provider=held", decryption, "by held RSA keys" },
        { NULL, NULL, NULL, NULL },
    };
    static const OSSL_ALGORITHM  decoders[] = {
        { "DER", "provider=held,input=pem", pem_decoder, "files of held keys" },
        { "RSA", "provider=held,input=der,structure=" STRUCTURE, rsa_decoder, "held RSA keys" },
        { "EC", "provider=held,input=der,structure=" STRUCTURE, ec_decoder, "held EC keys" },
        { NULL, NULL, NULL, NULL },
    };

    (void) provider;
    *no_cache = 0;

    switch (operation) {
    case OSSL_OP_KEYMGMT: return keys;
    case OSSL_OP_SIGNATURE: return signatures;
    case OSSL_OP_ASYM_CIPHER: return ciphers;
    case OSSL_OP_DECODER: return decoders;
    default: return NULL;
    }
}

static const OSSL_PARAM *
gettable(void *provider)
{
    static const OSSL_PARAM  list[] = {
        OSSL_PARAM_utf8_ptr(OSSL_PROV_PARAM_NAME, NULL, 0), OSSL_PARAM_utf8_ptr(OSSL_PROV_PARAM_VERSION, NULL, 0),
        OSSL_PARAM_int(OSSL_PROV_PARAM_STATUS, NULL), OSSL_PARAM_END,
    };

    (void) provider;
    return list;
}

static int
get_params(void *provider, OSSL_PARAM params[])
{
    OSSL_PARAM  *name = OSSL_PARAM_locate(params, OSSL_PROV_PARAM_NAME);
    OSSL_PARAM  *version = OSSL_PARAM_locate(params, OSSL_PROV_PARAM_VERSION);
    OSSL_PARAM  *status = OSSL_PARAM_locate(params, OSSL_PROV_PARAM_STATUS);

    (void) provider;
    return (name == NULL || OSSL_PARAM_set_utf8_ptr(name, "keys that are held"))
        && (version == NULL || OSSL_PARAM_set_utf8_ptr(version, "1"))
        && (status == NULL || OSSL_PARAM_set_int(status, 1));
}

static void
teardown(void *context)
{
    Provider  *provider = context;

    OSSL_PROVIDER_unload(provider->plain);
    OSSL_LIB_CTX_free(provider->inside);
    free(provider);
}

int
OSSL_provider_init(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in, const OSSL_DISPATCH **out, void **context)
{
    static const OSSL_DISPATCH  functions[] = {
        { OSSL_FUNC_PROVIDER_TEARDOWN, (Function) teardown },
        { OSSL_FUNC_PROVIDER_GETTABLE_PARAMS, (Function) gettable },
        { OSSL_FUNC_PROVIDER_GET_PARAMS, (Function) get_params },
        { OSSL_FUNC_PROVIDER_QUERY_OPERATION, (Function) query },
        { 0, NULL },
    };
    Provider  *provider = calloc(1, sizeof(*provider));

    if (provider == NULL) {
        return 0;
    }

    /* By the caller's table, so that the caller's BIOs can be read. */
    provider->inside = OSSL_LIB_CTX_new_from_dispatch(handle, in);
    provider->plain = provider->inside == NULL ? NULL : OSSL_PROVIDER_load(provider->inside, "default");

    if (provider->plain == NULL) {
        OSSL_LIB_CTX_free(provider->inside);
        free(provider);
        return 0;
    }

    *context = provider;
    *out = functions;

    return 1;
}
