/*
 * Key derivation by the provider and by OpenSSL's own, side by side, through public libcrypto calls only:
 *
 *     kdf random FOLDER-OF-THE-MODULE SEED COUNT      the same random calls on both, and everything they return
 *     kdf vectors FOLDER-OF-THE-MODULE                published answers; prints the provider's counters
 *     kdf speed FOLDER-OF-THE-MODULE                  derivations made as libssl makes them, both in turn; asserts nothing
 *
 * Exit status 0 if all was right; else a line says what was not. `random` prints how many derivations succeeded.
 */
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/provider.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../include/wattlock.h"

#define MUST(what) do { if (!(what)) die(#what, __LINE__); } while (0)
#define ROOM 20000
#define POOL 65536

static void
die(const char *what, int line)
{
    fprintf(stderr, "line %d: %s\n", line, what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static const char *const names[] = { "HKDF", "TLS13-KDF", "TLS1-PRF" };
enum { HKDF, TLS13, PRF };

static uint64_t      state;
static unsigned char pool[POOL];

static uint32_t
below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t) (state >> 33) % n;
}

static int
one_in(uint32_t n)
{
    return below(n) == 0;
}

static unsigned char *
bytes(size_t len)
{
    return pool + below(POOL - (uint32_t) len);
}

/* A list of parameters and what its numbers point to. */
typedef struct {
    OSSL_PARAM    entries[24];
    size_t        count;
    int           ints[4];
    unsigned int  uints[4];
    size_t        sizes[4];
    int           numbers;
} List;

/* How long the salt is that a context has; 0 for none. See `salt`. */
static size_t  salted;
/* Whether a context has infos or seeds. */
static int     informed;

static void
add(List *list, OSSL_PARAM entry)
{
    MUST(list->count + 1 < sizeof(list->entries) / sizeof(list->entries[0]));
    list->entries[list->count++] = entry;
    list->entries[list->count] = OSSL_PARAM_construct_end();
}

static void
octets(List *list, const char *name, size_t len)
{
    void  *at = len > 0 || one_in(2) ? bytes(len) : NULL;

    if (one_in(200)) {
        add(list, OSSL_PARAM_construct_utf8_string(name, "not a byte string", 0));
        return;
    }

    add(list, OSSL_PARAM_construct_octet_string(name, at, len));
}

/* One string in particular, now and then: what TLS 1.3 itself gives is done without hashing it. */
static int
known(List *list, const char *name, const char *bytes, size_t len)
{
    if (one_in(2)) {
        return 0;
    }

    add(list, OSSL_PARAM_construct_octet_string(name, (void *) bytes, len));
    return 1;
}

/* RFC 8446 section 7.1's early secrets without a pre-shared key. */
static const char  early256[] = "\x33\xad\x0a\x1c\x60\x7e\xc0\x3b\x09\xe6\xcd\x98\x93\x68\x0c\xe2\x10\xad\xf3\x00"
    "\xaa\x1f\x26\x60\xe1\xb2\x2e\x10\xf1\x70\xf9\x2a";
static const char  early384[] = "\x7e\xe8\x20\x6f\x55\x70\x02\x3e\x6d\xc7\x51\x9e\xb1\x07\x3b\xc4\xe7\x91\xad\x37"
    "\xb5\xc3\x82\xaa\x10\xba\x18\xe2\x35\x7e\x71\x69\x71\xf9\x36\x2f\x2c\x2f\xe2\xa7\x6b\xfd\x78\xdf\xec\x4e"
    "\xa9\xb5";

static size_t
some_len(void)
{
    static const size_t  usual[] = { 1, 16, 20, 32, 32, 48, 48, 64, 65, 95, 96, 97, 128, 129, 255, 256 };

    if (one_in(60)) {
        return one_in(2) ? 0 : 1000 + below(3000);
    }

    return one_in(3) ? 1 + below(300) : usual[below(sizeof(usual) / sizeof(usual[0]))];
}

static void
mode(List *list, int kdf)
{
    static const char *const  texts[] = { "EXTRACT_AND_EXPAND", "EXTRACT_ONLY", "EXPAND_ONLY", "extract_only",
                                          "Expand_Only", "both", "" };
    int                       number = kdf == TLS13 ? 1 + (int) below(2) : (int) below(3);

    if (one_in(40)) {
        number = (int) below(6) - 1;
    }

    switch (below(8)) {
    case 0:
        list->uints[list->numbers] = (unsigned int) number;
        add(list, OSSL_PARAM_construct_uint("mode", &list->uints[list->numbers++]));
        return;
    case 1:
        list->sizes[list->numbers] = (size_t) number;
        add(list, OSSL_PARAM_construct_size_t("mode", &list->sizes[list->numbers++]));
        return;
    case 2:
        add(list, OSSL_PARAM_construct_utf8_string("mode", (char *) texts[below(one_in(10) ? 7 : 5)], 0));
        return;
    default:
        list->ints[list->numbers] = number;
        add(list, OSSL_PARAM_construct_int("mode", &list->ints[list->numbers++]));
    }
}

/*
 * OpenSSL's TLS13-KDF reads as many bytes of a salt as the digest has, however long the salt is: a shorter one would make
 * its answer depend on what lies behind. It gets none.
 */
static void
salt(List *list, int kdf, size_t digest)
{
    size_t  len = some_len();

    if (kdf == TLS13) {
        len = digest > 0 && !one_in(10) ? digest : 64;
        salted = len;
        if ((len == 32 && known(list, "salt", early256, len)) || (len == 48 && known(list, "salt", early384, len))) {
            return;
        }
    }

    octets(list, "salt", len);
}

/* Returns how many bytes the digest has that the list names; 0 if it names none. */
static size_t
fill(List *list, int kdf)
{
    static const struct { const char *name; size_t len; }  digests[] = {
        { "SHA256", 32 }, { "SHA384", 48 }, { "SHA2-256", 32 }, { "sha512", 64 }, { "SHA-384", 48 }, { "sHa256", 32 },
        { "SHA512", 64 }, { "SHA1", 20 }, { "ssl3-sha1", 20 }, { "MD5-SHA1", 36 }, { "MD5", 16 }, { "SHA3-256", 32 }, { "SHA512-256", 32 },
        { "NO-SUCH", 0 }, { "", 0 }, { "2.16.840.1.101.3.4.2.1", 32 },
    };
    size_t  digest = 0, i;

    memset(list, 0, sizeof(*list));
    list->entries[0] = OSSL_PARAM_construct_end();

    if (!one_in(12)) {
        i = one_in(5) ? below(sizeof(digests) / sizeof(digests[0])) : below(one_in(4) ? 9 : 2);
        digest = digests[i].len;
        add(list, OSSL_PARAM_construct_utf8_string("digest", (char *) digests[i].name, 0));
        if (one_in(100)) {
            add(list, OSSL_PARAM_construct_utf8_string("digest", "SHA512", 0));
            digest = 64;
        }
    }

    if (kdf != PRF && !one_in(kdf == TLS13 ? 15 : 3)) {
        mode(list, kdf);
    }

    if (!one_in(15)) {
        octets(list, kdf == PRF ? "secret" : "key", some_len());
    }

    if (one_in(150)) {
        octets(list, kdf == PRF ? "secret" : "key", 32);
    }

    if (kdf != PRF && (one_in(2) || (salted > 0 && digest > salted))) {
        salt(list, kdf, digest);
    }

    for (i = one_in(30) ? below(8) : kdf == PRF ? 1 + below(5) : below(3); i > 0 && kdf != TLS13; i--) {
        /* OpenSSL 3.0 reads freed memory where no info replaces one. */
        octets(list, kdf == PRF ? "seed" : "info", one_in(5) && (!informed || kdf == PRF) ? 0 : 1 + some_len());
        informed = 1;
    }

    if (kdf == TLS13) {
        if (!one_in(20) && !known(list, "prefix", "tls13 ", 6)) {
            octets(list, "prefix", one_in(10) ? some_len() : 6);
        }
        if (!one_in(20) && !known(list, "label", "derived", 7)) {
            octets(list, "label", one_in(10) ? some_len() : 1 + below(18));
        }
        if (one_in(2)) {
            octets(list, "data", one_in(10) ? some_len() : 32);
        }
    }

    if (one_in(60)) {
        static const char *const  queries[] = { "provider=default", "", "provider=nobody", "?provider=wattlock" };

        add(list, OSSL_PARAM_construct_utf8_string("properties", (char *) queries[below(4)], 0));
    }

    if (one_in(10)) {
        static const char *const  strange[] = { "key-check", "digest-check", "ems_check", "fips-indicator", "pass",
                                                "maclen" };

        list->ints[list->numbers] = 0;
        add(list, OSSL_PARAM_construct_int(strange[below(6)], &list->ints[list->numbers++]));
    }

    return digest;
}

static size_t
some_out(int kdf)
{
    static const size_t  usual[] = { 12, 16, 32, 40, 48, 64, 72, 104, 136, 100, 1, 33, 255 };
    static const size_t  edge[] = { 0, 255 * 20, 255 * 20 + 1, 255 * 32, 255 * 32 + 1, 255 * 48, 255 * 48 + 1, 255 * 64,
                                    255 * 64 + 1 };

    if (one_in(20)) {
        return kdf == PRF ? below(3000) : edge[below(9)];
    }

    return usual[below(13)];
}

/* Whatever is on the error queue, in order: libraries and reasons. */
static size_t
errors(unsigned long *codes, size_t most)
{
    size_t         count = 0;
    unsigned long  code;

    while ((code = ERR_get_error()) != 0) {
        if (count < most) {
            codes[count++] = code;
        }
    }

    return count;
}

typedef struct {
    int            result;
    unsigned char  out[ROOM];
    unsigned long  codes[16];
    size_t         count;
} Told;

typedef struct {
    OSSL_LIB_CTX   *ctx;
    OSSL_PROVIDER  *theirs, *ours;
} Home;

static const struct wattlock_table *
table_of(OSSL_PROVIDER *ours)
{
    const struct wattlock_table  *table = NULL;
    OSSL_PARAM                    ask[] = { OSSL_PARAM_octet_ptr("wattlock-table", &table, 0), OSSL_PARAM_END };

    MUST(OSSL_PROVIDER_get_params(ours, ask) && table != NULL);
    return table;
}

static Home
enter(const char *folder, int ours)
{
    Home  home = { OSSL_LIB_CTX_new(), NULL, NULL };

    MUST(home.ctx != NULL && OSSL_PROVIDER_set_default_search_path(home.ctx, folder));
    MUST((home.theirs = OSSL_PROVIDER_load(home.ctx, "default")) != NULL);
    if (ours) {
        MUST((home.ours = OSSL_PROVIDER_load(home.ctx, "libwattlock_provider")) != NULL);
        MUST(EVP_set_default_properties(home.ctx, "?provider=wattlock"));
        /* As in a handshake: secrets that come again are found. */
        table_of(home.ours)->set_active(table_of(home.ours)->provider, 1);
    }

    return home;
}

static void
leave(Home *home)
{
    MUST(home->ours == NULL || OSSL_PROVIDER_unload(home->ours));
    MUST(OSSL_PROVIDER_unload(home->theirs));
    OSSL_LIB_CTX_free(home->ctx);
}

static EVP_KDF *
fetch(OSSL_LIB_CTX *ctx, const char *name, const char *provider)
{
    EVP_KDF  *kdf = EVP_KDF_fetch(ctx, name, NULL);

    MUST(kdf != NULL && strcmp(OSSL_PROVIDER_get0_name(EVP_KDF_get0_provider(kdf)), provider) == 0);
    return kdf;
}

/* The same list, whose key lies where the output will: libssl has such calls. */
static const OSSL_PARAM *
over_key(const OSSL_PARAM *list, unsigned char *out)
{
    static OSSL_PARAM  own[24];
    OSSL_PARAM        *entry = own;

    do {
        *entry = *list;
        if (list->key != NULL && (strcmp(list->key, "key") == 0 || strcmp(list->key, "secret") == 0)
            && list->data_type == OSSL_PARAM_OCTET_STRING && list->data != NULL)
        {
            memcpy(out, list->data, list->data_size);
            entry->data = out;
        }
        entry++;
    } while ((list++)->key != NULL);

    return own;
}

static void
step(EVP_KDF_CTX *ctx, int what, size_t len, int over, const OSSL_PARAM *list, Told *told)
{
    size_t      size = 1234;
    char        text[80] = "untouched";
    OSSL_PARAM  ask[3] = { OSSL_PARAM_construct_size_t("size", &size), OSSL_PARAM_construct_end(),
                           OSSL_PARAM_construct_end() };

    ERR_clear_error();
    memset(told->out, 0xa5, sizeof(told->out));

    switch (what) {
    case 0:
        told->result = EVP_KDF_CTX_set_params(ctx, list);
        break;
    case 1:
        EVP_KDF_CTX_reset(ctx);
        told->result = 1;
        break;
    case 2:
        ask[len % 3 == 0] = OSSL_PARAM_construct_utf8_string(len % 2 ? "digest" : "nothing", text, sizeof(text));
        told->result = EVP_KDF_CTX_get_params(ctx, ask);
        memcpy(told->out, &size, sizeof(size));
        memcpy(told->out + 8, text, sizeof(text));
        break;
    case 3:
        size = EVP_KDF_CTX_get_kdf_size(ctx);
        memcpy(told->out, &size, sizeof(size));
        told->result = 1;
        break;
    default:
        if (over && list != NULL) {
            list = over_key(list, told->out);
        }
        told->result = EVP_KDF_derive(ctx, told->out, len, list);
    }

    told->count = errors(told->codes, 16);
}

static int
has_md5_sha1(const OSSL_PARAM *list)
{
    for (; list != NULL && list->key != NULL; list++) {
        if (strcmp(list->key, "digest") == 0 && strcmp(list->data, "MD5-SHA1") == 0) {
            return 1;
        }
    }

    return 0;
}

static void
differ(const char *name, int what, size_t len, const OSSL_PARAM *list, const Told *ours, const Told *theirs)
{
    size_t  i;

    fprintf(stderr, "%s, step %d, %zu bytes: ours %d, theirs %d\n", name, what, len, ours->result, theirs->result);
    for (; list != NULL && list->key != NULL; list++) {
        fprintf(stderr, "  %s type %u, %zu bytes", list->key, list->data_type, list->data_size);
        if (list->data_type == OSSL_PARAM_UTF8_STRING) {
            fprintf(stderr, " %s", (char *) list->data);
        } else if (list->data_type <= 2) {
            fprintf(stderr, " %d", *(int *) list->data);
        }
        fprintf(stderr, "\n");
    }
    for (i = 0; i < ours->count; i++) {
        fprintf(stderr, "  ours   %s\n", ERR_error_string(ours->codes[i], NULL));
    }
    for (i = 0; i < theirs->count; i++) {
        fprintf(stderr, "  theirs %s\n", ERR_error_string(theirs->codes[i], NULL));
    }
    exit(1);
}

static void
compare(OSSL_LIB_CTX *one, OSSL_LIB_CTX *other, int which, unsigned *good, unsigned *bad)
{
    static Told   ours, theirs;
    EVP_KDF      *kdfs[2] = { fetch(one, names[which], "libwattlock_provider"), fetch(other, names[which], "default") };
    EVP_KDF_CTX  *a = EVP_KDF_CTX_new(kdfs[0]), *b = EVP_KDF_CTX_new(kdfs[1]), *copy;
    List          list;
    int           steps = 1 + (int) below(5), what, over;
    size_t        len, digest;

    MUST(a != NULL && b != NULL);
    salted = 0;
    informed = 0;

    while (steps-- > 0) {
        what = (int) below(10);
        digest = fill(&list, which);
        len = digest > 0 && one_in(2) ? digest : some_out(which);
        OSSL_PARAM  *params = what >= 4 && one_in(8) ? NULL : list.entries;

        if (what == 1) {
            salted = 0;
            informed = 0;
        }
        over = one_in(4);
        step(a, what, len, over, params, &ours);
        step(b, what, len, over, params, &theirs);

        if (ours.result != theirs.result || memcmp(ours.out, theirs.out, ROOM) != 0 || ours.count != theirs.count
            || memcmp(ours.codes, theirs.codes, ours.count * sizeof(ours.codes[0])) != 0)
        {
            differ(names[which], what, len, params, &ours, &theirs);
        }
        if (what >= 4) {
            (*(ours.result > 0 ? good : bad))++;
        }

        /*
         * OpenSSL 3.0 keeps the length of a byte string that it failed to replace, and a freed MAC of MD5-SHA1 when
         * another digest follows; it would crash by itself.
         */
        if (ours.result <= 0 || has_md5_sha1(params)) {
            EVP_KDF_CTX_reset(a);
            EVP_KDF_CTX_reset(b);
            salted = 0;
            informed = 0;
        }

        if (one_in(4) && (copy = EVP_KDF_CTX_dup(a)) != NULL) {
            EVP_KDF_CTX_free(a);
            a = copy;
        }
    }

    EVP_KDF_CTX_free(a);
    EVP_KDF_CTX_free(b);
    EVP_KDF_free(kdfs[0]);
    EVP_KDF_free(kdfs[1]);
}

static void
random_calls(const char *folder, uint64_t seed, unsigned count)
{
    Home      ours = enter(folder, 1), theirs = enter(folder, 0);
    unsigned  good[3] = { 0 }, bad[3] = { 0 }, i;

    state = seed * 0x9e3779b97f4a7c15u | 1;
    for (i = 0; i < POOL; i++) {
        pool[i] = (unsigned char) below(256);
    }
    for (i = 0; i < count; i++) {
        compare(ours.ctx, theirs.ctx, (int) i % 3, &good[i % 3], &bad[i % 3]);
    }
    for (i = 0; i < 3; i++) {
        printf("%s %u %u\n", names[i], good[i], bad[i]);
    }

    leave(&ours);
    leave(&theirs);
}

static size_t
unhex(const char *text, unsigned char *out)
{
    long            len = 0;
    unsigned char  *made = OPENSSL_hexstr2buf(text, &len);

    MUST(made != NULL);
    memcpy(out, made, (size_t) len);
    OPENSSL_free(made);
    return (size_t) len;
}

/* `how` has name=hex or name:text, separated by blanks. */
static void
vector(OSSL_LIB_CTX *ctx, const char *name, const char *how, const char *hex)
{
    static unsigned char  room[16][512];
    unsigned char         want[512], got[512];
    char                  words[1024], *word, *rest;
    size_t                count = 0, len = unhex(hex, want);
    List                  list;
    EVP_KDF              *kdf = fetch(ctx, name, "libwattlock_provider");
    EVP_KDF_CTX          *kctx = EVP_KDF_CTX_new(kdf);

    memset(&list, 0, sizeof(list));
    MUST(strlen(how) < sizeof(words));
    strcpy(words, how);
    for (word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char  *value = word + strcspn(word, "=:");
        int    is_hex = *value == '=';

        *value++ = 0;
        if (is_hex) {
            size_t  value_len = unhex(value, room[count]);

            add(&list, OSSL_PARAM_construct_octet_string(word, room[count++], value_len));
        } else {
            add(&list, OSSL_PARAM_construct_utf8_string(word, value, 0));
        }
    }

    MUST(EVP_KDF_derive(kctx, got, len, list.entries) == 1);
    MUST(memcmp(got, want, len) == 0);
    EVP_KDF_CTX_free(kctx);
    EVP_KDF_free(kdf);
}

static void
print_status(OSSL_PROVIDER *ours)
{
    static char                   text[1 << 20];
    const struct wattlock_table  *table = table_of(ours);

    MUST(table->status(table->provider, WATTLOCK_PROMETHEUS, text, sizeof(text)) <= sizeof(text));
    fputs(text, stdout);
}

static void
vectors(const char *folder)
{
    Home           home = enter(folder, 1);
    OSSL_LIB_CTX  *ctx = home.ctx;

    /* RFC 5869, appendix A.1 to A.4. */
    vector(ctx, "HKDF", "digest:SHA256 key=0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b salt=000102030405060708090a0b0c "
           "info=f0f1f2f3f4f5f6f7f8f9",
           "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
    vector(ctx, "HKDF", "mode:EXTRACT_ONLY digest:SHA256 key=0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b "
           "salt=000102030405060708090a0b0c",
           "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
    vector(ctx, "HKDF", "mode:EXPAND_ONLY digest:SHA256 "
           "key=077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5 info=f0f1f2f3f4f5f6f7f8f9",
           "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
    vector(ctx, "HKDF", "digest:SHA256 key=0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",
           "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
    vector(ctx, "HKDF", "digest:SHA1 key=0b0b0b0b0b0b0b0b0b0b0b salt=000102030405060708090a0b0c "
           "info=f0f1f2f3f4f5f6f7f8f9",
           "085a01ea1b10f36933068b56efa5ad81a4f14b822f5b091568a9cdd4f155fda2c22e422478d305f3f896");

    /* RFC 8448, section 3: early secret, the secret derived from it, handshake secret, master secret. */
    vector(ctx, "TLS13-KDF", "mode:EXTRACT_ONLY digest:SHA256 prefix=746c73313320 label=64657269766564",
           "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a");
    vector(ctx, "TLS13-KDF", "mode:EXPAND_ONLY digest:SHA256 "
           "key=33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a prefix=746c73313320 "
           "label=64657269766564 data=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
           "6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba");
    vector(ctx, "TLS13-KDF", "mode:EXTRACT_ONLY digest:SHA256 prefix=746c73313320 label=64657269766564 "
           "salt=33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a "
           "key=8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d",
           "1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac");
    vector(ctx, "TLS13-KDF", "mode:EXTRACT_ONLY digest:SHA256 prefix=746c73313320 label=64657269766564 "
           "salt=1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac",
           "18df06843d13a08bf2a449844c5f8a478001bc4d4c627984d5a41da8d0402919");

    /* The PRF of TLS 1.2 with SHA-256, as the IETF's TLS list has it: "test label" and the seed. */
    vector(ctx, "TLS1-PRF", "digest:SHA256 secret=9bbe436ba940f017b17652849a71db35 seed=74657374206c6162656c "
           "seed=a0ba9f936cda311827a6f796ffd5198c",
           "e3f229ba727be17b8d122620557cd453c2aab21d07c3d495329b52d4e61edb5a6b301791e90d35c9c9a46b4e14baf9af0fa022f7077def17"
           "abfd3797c0564bab4fbc91666e9def9b97fce34f796789baa48082d122ee42c5a72e5a5110fff70187347b66");

    print_status(home.ours);
    leave(&home);
}

typedef struct {
    const char  *what;
    int          kdf;
    const char  *digest;
    int          mode;
    /* Bytes of key, salt, the first seed or the label, the second seed or data or info, and output. */
    size_t       key, salt, first, second, out;
    /* Whether the secret is that of the derivation before, as it is for most of a handshake's. */
    int          again;
} Row;

/* As tls1_PRF and tls13_hkdf_expand do it: each derivation fetches, makes a context, and frees both. */
static double
derivations(OSSL_LIB_CTX *ctx, const Row *row, int count)
{
    struct timespec  from, to;
    unsigned char    out[4096];
    int              i, good = 1, kdf = row->kdf, mode = row->mode;

    clock_gettime(CLOCK_MONOTONIC, &from);
    for (i = 0; i < count; i++) {
        EVP_KDF      *fetched = EVP_KDF_fetch(ctx, names[kdf], NULL);
        EVP_KDF_CTX  *kctx = EVP_KDF_CTX_new(fetched);
        OSSL_PARAM    list[8], *p = list;

        EVP_KDF_free(fetched);
        if (!row->again) {
            memcpy(pool, &i, sizeof(i));
            memcpy(pool + 100, &i, sizeof(i));
        }
        *p++ = OSSL_PARAM_construct_utf8_string("digest", (char *) row->digest, 0);
        if (kdf != PRF) {
            *p++ = OSSL_PARAM_construct_int("mode", &mode);
        }
        if (row->key > 0) {
            *p++ = OSSL_PARAM_construct_octet_string(kdf == PRF ? "secret" : "key", pool, row->key);
        }
        if (row->salt > 0) {
            *p++ = OSSL_PARAM_construct_octet_string("salt", pool + 100, row->salt);
        }
        if (kdf == TLS13) {
            *p++ = OSSL_PARAM_construct_octet_string("prefix", "tls13 ", 6);
        }
        if (row->first > 0) {
            *p++ = OSSL_PARAM_construct_octet_string(kdf == PRF ? "seed" : "label", pool + 200, row->first);
        }
        if (row->second > 0) {
            *p++ = OSSL_PARAM_construct_octet_string(kdf == PRF ? "seed" : kdf == HKDF ? "info" : "data", pool + 300,
                                                     row->second);
        }
        *p = OSSL_PARAM_construct_end();
        good = good && EVP_KDF_derive(kctx, out, row->out, list) == 1;
        EVP_KDF_CTX_free(kctx);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);

    MUST(good);
    return ((double) (to.tv_sec - from.tv_sec) * 1e9 + (double) (to.tv_nsec - from.tv_nsec)) / count;
}

static void
speed(const char *folder)
{
    static const Row  rows[] = {
        { "TLS 1.3, a traffic secret", TLS13, "SHA256", 2, 32, 0, 12, 32, 32, 0 },
        { "TLS 1.3, a traffic secret", TLS13, "SHA384", 2, 48, 0, 12, 48, 48, 0 },
        { "TLS 1.3, a key", TLS13, "SHA256", 2, 32, 0, 3, 0, 16, 0 },
        { "TLS 1.3, a key", TLS13, "SHA384", 2, 48, 0, 3, 0, 32, 0 },
        { "TLS 1.3, an IV of that secret", TLS13, "SHA256", 2, 32, 0, 2, 0, 12, 1 },
        { "TLS 1.3, an IV of that secret", TLS13, "SHA384", 2, 48, 0, 2, 0, 12, 1 },
        { "TLS 1.3, early secret", TLS13, "SHA256", 1, 0, 0, 7, 0, 32, 0 },
        { "TLS 1.3, early secret", TLS13, "SHA384", 1, 0, 0, 7, 0, 48, 0 },
        { "TLS 1.3, handshake secret", TLS13, "SHA256", 1, 32, 32, 7, 0, 32, 0 },
        { "TLS 1.3, handshake secret", TLS13, "SHA384", 1, 32, 48, 7, 0, 48, 0 },
        { "TLS 1.2, finished", PRF, "SHA256", 0, 48, 0, 15, 32, 12, 0 },
        { "TLS 1.2, master secret", PRF, "SHA256", 0, 32, 0, 22, 32, 48, 0 },
        { "TLS 1.2, keys of AES-128-GCM", PRF, "SHA256", 0, 48, 0, 13, 64, 40, 0 },
        { "TLS 1.2, keys of AES-256-CBC", PRF, "SHA256", 0, 48, 0, 13, 64, 128, 0 },
        { "TLS 1.2, finished", PRF, "SHA384", 0, 48, 0, 15, 48, 12, 0 },
        { "TLS 1.2, master secret", PRF, "SHA384", 0, 32, 0, 22, 48, 48, 0 },
        { "TLS 1.2, keys of AES-256-GCM", PRF, "SHA384", 0, 48, 0, 13, 64, 72, 0 },
        { "TLS 1.1, master secret", PRF, "MD5-SHA1", 0, 48, 0, 13, 64, 48, 0 },
        { "PRF with another digest", PRF, "SHA512", 0, 48, 0, 13, 64, 48, 0 },
        { "PRF with another digest", PRF, "SHA224", 0, 48, 0, 13, 64, 48, 0 },
        { "HKDF", HKDF, "SHA256", 0, 32, 32, 0, 10, 32, 0 },
        { "HKDF", HKDF, "SHA512", 0, 32, 32, 0, 10, 64, 0 },
        { "HKDF, 4 KiB", HKDF, "SHA256", 0, 32, 32, 0, 10, 4096, 0 },
        { "HKDF with another digest", HKDF, "SHA1", 0, 32, 32, 0, 10, 32, 0 },
        { "HKDF with another digest", HKDF, "SHA224", 0, 32, 32, 0, 10, 32, 0 },
        { "TLS 1.3, with another digest", TLS13, "SHA224", 2, 28, 0, 12, 28, 28, 0 },
    };
    Home    homes[2] = { enter(folder, 0), enter(folder, 1) };
    size_t  i;
    int     round, side;

    printf("%-32s %-9s %9s %9s  ratio (best of 200 times 150, in turn)\n", "", "", "OpenSSL", "ours");
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double  best[2] = { 1e18, 1e18 };

        for (round = 0; round < 200; round++) {
            for (side = 0; side < 2; side++) {
                double  took = derivations(homes[side].ctx, &rows[i], 150);

                best[side] = took < best[side] ? took : best[side];
            }
        }
        printf("%-32s %-9s %6.0f ns %6.0f ns  %5.2f\n", rows[i].what, rows[i].digest, best[0], best[1],
               best[0] / best[1]);
    }

    leave(&homes[0]);
    leave(&homes[1]);
}

int
main(int argc, char **argv)
{
    MUST(argc > 2);
    if (strcmp(argv[1], "vectors") == 0) {
        vectors(argv[2]);
    } else if (strcmp(argv[1], "speed") == 0) {
        speed(argv[2]);
    } else {
        MUST(argc == 5);
        random_calls(argv[2], strtoull(argv[3], NULL, 10), (unsigned) atoi(argv[4]));
    }

    return 0;
}
