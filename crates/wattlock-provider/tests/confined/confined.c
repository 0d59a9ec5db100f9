/* A program that confines itself: loads OpenSSL's configuration, installs a seccomp filter, then does one kind of work.
 *
 *   confined PLACE WORK END RULE...
 *
 * PLACE  here     the filter, then the work, in the process that loaded the configuration
 *        before   the filter comes before the configuration is loaded
 *        thread   the work is done by a thread that starts behind the filter
 *        fork     by a child that is forked behind the filter
 *        forked   by a child that installs the filter itself
 *        used     by a child that installs the filter itself after it has drawn random bytes, as sshd does
 *        chroot   in an empty root, the filter behind it
 *        limits   without further processes, descriptors or bytes in files
 *        strict   under strict mode: read, write, exit and sigreturn
 * END    exit     all that libcrypto does at a program's end; _exit: nothing of it
 * RULE   NR[@ARG=VALUE | @ARG~MASK]...[!ERRNO]: the call is answered if the arguments are equal, or have no bit beside the
 *        mask; with ERRNO it fails with that. Everything else ends the process: it prints "call NR" and exits with 99.
 *
 * Exit status: 0 good, 1 the work failed, 2 it could not be set up.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { say("failed: " #what "\n"); return 0; } } while (0)
#define TIMES 70
#define MOST 4000

static struct sock_filter filter[MOST];
static unsigned short filter_len;
static const char *work_name;
static EVP_PKEY *rsa, *p256, *p384, *p521, *x25519, *ed25519;
static EVP_CIPHER_CTX *kept;

static void say(const char *text)
{
    ssize_t ignored = write(2, text, strlen(text));
    (void)ignored;
}

static void emit(unsigned short code, unsigned char jt, unsigned char jf, unsigned k)
{
    if (filter_len == MOST)
        abort();
    filter[filter_len++] = (struct sock_filter){ code, jt, jf, k };
}

/* One rule; the accumulator holds the number before and after. */
static void rule(const char *text)
{
    char *at;
    unsigned nr = strtoul(text, &at, 0), conditions = 0, length = 0;
    for (const char *c = at; *c; c++) {
        length += *c == '@' ? 2 : 0;
        conditions += *c == '@';
    }
    /* For each condition a load and a jump; an answer; and the number again. */
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, length + 1 + (conditions ? 1 : 0), nr);
    while (*at == '@') {
        unsigned arg = strtoul(at + 1, &at, 0);
        char sort = *at;
        unsigned value = strtoul(at + 1, &at, 0);
        length -= 2;
        emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args) + 8 * arg);
        if (sort == '=')
            emit(BPF_JMP | BPF_JEQ | BPF_K, 0, length + 1, value);
        else
            emit(BPF_JMP | BPF_JSET | BPF_K, length + 1, 0, ~value);
    }
    emit(BPF_RET | BPF_K, 0, 0, *at == '!' ? SECCOMP_RET_ERRNO | strtoul(at + 1, NULL, 0) : SECCOMP_RET_ALLOW);
    if (conditions)
        emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
}

static void stopped(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    char text[] = "call 0000\n";
    int nr = info->si_syscall;
    for (int digit = 8; digit >= 5; digit--, nr /= 10)
        text[digit] = '0' + nr % 10;
    say(text);
    _exit(99);
}

static int confine(void)
{
    struct sock_fprog program = { filter_len, filter };
    struct sigaction action = { .sa_sigaction = stopped, .sa_flags = SA_SIGINFO | SA_NODEFER };
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    return 1;
}

static int seal(const char *name, int tag)
{
    unsigned char key[64], iv[16] = { 7 }, in[1000] = { 1 }, out[1100];
    int len = 0;
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = i;
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, name, NULL);
    CHECK(cipher);
    for (int encrypt = 1; encrypt >= 0; encrypt--) {
        EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
        CHECK(EVP_CipherInit_ex2(context, cipher, key, iv, 1, NULL));
        CHECK(EVP_CipherUpdate(context, out, &len, in, sizeof in));
        CHECK(EVP_CipherFinal_ex(context, out + len, &len));
        if (tag)
            CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, out));
        EVP_CIPHER_CTX_free(context);
    }
    EVP_CIPHER_free(cipher);
    return 1;
}

static int sign(EVP_PKEY *key, const EVP_MD *digest, int padding)
{
    unsigned char out[1024];
    size_t len = sizeof out;
    EVP_PKEY_CTX *parameters = NULL;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    CHECK(EVP_DigestSignInit_ex(context, &parameters, digest ? EVP_MD_get0_name(digest) : NULL, NULL, NULL, key, NULL));
    if (padding)
        CHECK(EVP_PKEY_CTX_set_rsa_padding(parameters, padding) == 1);
    CHECK(EVP_DigestSign(context, out, &len, (unsigned char *)"message", 7));
    EVP_MD_CTX_free(context);
    context = EVP_MD_CTX_new();
    CHECK(EVP_DigestVerifyInit_ex(context, &parameters, digest ? EVP_MD_get0_name(digest) : NULL, NULL, NULL, key, NULL));
    if (padding)
        CHECK(EVP_PKEY_CTX_set_rsa_padding(parameters, padding) == 1);
    CHECK(EVP_DigestVerify(context, out, len, (unsigned char *)"message", 7) == 1);
    EVP_MD_CTX_free(context);
    return 1;
}

static int decrypt(EVP_PKEY *key, int padding)
{
    unsigned char sealed[1024], out[1024];
    size_t len = sizeof sealed, out_len = sizeof out;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(key, NULL);
    CHECK(EVP_PKEY_encrypt_init(context) == 1 && EVP_PKEY_CTX_set_rsa_padding(context, padding) == 1);
    CHECK(EVP_PKEY_encrypt(context, sealed, &len, (unsigned char *)"message", 7) == 1);
    CHECK(EVP_PKEY_decrypt_init(context) == 1 && EVP_PKEY_CTX_set_rsa_padding(context, padding) == 1);
    CHECK(EVP_PKEY_decrypt(context, out, &out_len, sealed, len) == 1 && out_len == 7);
    EVP_PKEY_CTX_free(context);
    return 1;
}

static int derive(EVP_PKEY *mine, EVP_PKEY *theirs)
{
    unsigned char secret[100];
    size_t len = sizeof secret;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(mine, NULL);
    CHECK(EVP_PKEY_derive_init(context) == 1 && EVP_PKEY_derive_set_peer(context, theirs) == 1);
    CHECK(EVP_PKEY_derive(context, secret, &len) == 1);
    EVP_PKEY_CTX_free(context);
    return 1;
}

static int agree(EVP_PKEY *theirs)
{
    /* By name, as libssl does: a fresh key is then of whatever provider is preferred. */
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, EVP_PKEY_get0_type_name(theirs), NULL);
    EVP_PKEY *mine = NULL;
    char group[50];
    size_t len;
    CHECK(context && EVP_PKEY_keygen_init(context) == 1);
    if (EVP_PKEY_is_a(theirs, "EC"))
        CHECK(EVP_PKEY_get_group_name(theirs, group, sizeof group, &len) && EVP_PKEY_CTX_set_group_name(context, group) == 1);
    CHECK(EVP_PKEY_keygen(context, &mine) == 1);
    CHECK(derive(mine, theirs));
    EVP_PKEY_free(mine);
    EVP_PKEY_CTX_free(context);
    return 1;
}

static int hkdf(const char *name)
{
    unsigned char out[80], secret[48] = { 5 };
    size_t len = sizeof out;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, name, NULL);
    CHECK(context && EVP_PKEY_derive_init(context) == 1);
    if (strcmp(name, "HKDF") == 0) {
        CHECK(EVP_PKEY_CTX_set_hkdf_md(context, EVP_sha256()) == 1);
        CHECK(EVP_PKEY_CTX_set1_hkdf_key(context, secret, sizeof secret) == 1);
        CHECK(EVP_PKEY_CTX_set1_hkdf_salt(context, secret, 20) == 1);
    } else {
        CHECK(EVP_PKEY_CTX_set_tls1_prf_md(context, EVP_sha256()) == 1);
        CHECK(EVP_PKEY_CTX_set1_tls1_prf_secret(context, secret, sizeof secret) == 1);
        CHECK(EVP_PKEY_CTX_add1_tls1_prf_seed(context, secret, 20) == 1);
    }
    CHECK(EVP_PKEY_derive(context, out, &len) == 1);
    EVP_PKEY_CTX_free(context);
    return 1;
}

static SSL_CTX *server_context, *client_context;

static int handshake(int version)
{
    BIO *left, *right;
    char buffer[1000];
    SSL *server = SSL_new(server_context), *client = SSL_new(client_context);
    CHECK(server && client && BIO_new_bio_pair(&left, 70000, &right, 70000));
    SSL_set_bio(server, left, left);
    SSL_set_bio(client, right, right);
    SSL_set_accept_state(server);
    SSL_set_connect_state(client);
    CHECK(SSL_set_max_proto_version(client, version));
    for (int turn = 0; turn < 20; turn++) {
        int one = SSL_do_handshake(client), other = SSL_do_handshake(server);
        if (one == 1 && other == 1)
            break;
    }
    CHECK(SSL_is_init_finished(client) && SSL_is_init_finished(server));
    CHECK(SSL_write(server, "hello", 5) == 5 && SSL_read(client, buffer, sizeof buffer) == 5);
    SSL_free(server);
    SSL_free(client);
    return 1;
}

static int once(void)
{
    const char *work = work_name;
    unsigned char bytes[100];
    int len;
    if (strcmp(work, "gcm") == 0)
        return seal("AES-128-GCM", 1) && seal("AES-256-GCM", 1);
    if (strcmp(work, "ctr") == 0)
        return seal("AES-128-CTR", 0) && seal("AES-256-CTR", 0);
    if (strcmp(work, "cbc") == 0)
        return seal("AES-256-CBC", 0);
    if (strcmp(work, "chacha") == 0)
        return seal("ChaCha20-Poly1305", 1);
    if (strcmp(work, "kept") == 0)
        return EVP_CipherUpdate(kept, bytes, &len, bytes, sizeof bytes);
    if (strcmp(work, "rand") == 0)
        return RAND_bytes(bytes, sizeof bytes) && RAND_priv_bytes(bytes, sizeof bytes);
    if (strcmp(work, "rsa") == 0)
        return sign(rsa, EVP_sha256(), RSA_PKCS1_PADDING) && sign(rsa, EVP_sha256(), RSA_PKCS1_PSS_PADDING);
    if (strcmp(work, "rsa-decrypt") == 0)
        return decrypt(rsa, RSA_PKCS1_PADDING) && decrypt(rsa, RSA_PKCS1_OAEP_PADDING);
    if (strcmp(work, "ecdsa") == 0)
        return sign(p256, EVP_sha256(), 0) && sign(p384, EVP_sha384(), 0) && sign(p521, EVP_sha512(), 0);
    if (strcmp(work, "ed25519") == 0)
        return sign(ed25519, NULL, 0);
    if (strcmp(work, "ecdh") == 0)
        return agree(p256) && agree(p384);
    if (strcmp(work, "x25519") == 0)
        return agree(x25519);
    if (strcmp(work, "derive") == 0)
        return derive(x25519, x25519) && derive(p256, p256);
    if (strcmp(work, "hkdf") == 0)
        return hkdf("HKDF") && hkdf("TLS1-PRF");
    if (strncmp(work, "tls12", 5) == 0)
        return handshake(TLS1_2_VERSION);
    if (strncmp(work, "tls13", 5) == 0)
        return handshake(TLS1_3_VERSION);
    say("no such work\n");
    return 0;
}

static int many(void)
{
    for (int turn = 0; turn < TIMES; turn++)
        if (!once())
            return 0;
    return 1;
}

static void *in_thread(void *good)
{
    *(int *)good = many();
    return NULL;
}

static int in_child(int filtered, int used)
{
    pid_t child = fork();
    int status = 0;
    CHECK(child >= 0);
    if (child == 0) {
        unsigned char bytes[32];
        if (used && RAND_bytes(bytes, sizeof bytes) != 1)
            exit(2);
        if (filtered && !confine())
            exit(2);
        exit(!many());
    }
    if (waitpid(child, &status, 0) != child)
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status))
        _exit(WEXITSTATUS(status));
    return status == 0;
}

/* A key from a file beside us: what generates one would have been used already. */
static EVP_PKEY *load(const char *name)
{
    FILE *file = fopen(name, "r");
    EVP_PKEY *key = file ? PEM_read_PrivateKey(file, NULL, NULL, NULL) : NULL;
    if (file)
        fclose(file);
    return key;
}

/* What the work needs of before, and nothing else: a first use behind the filter is a first use. */
static int prepare(void)
{
    unsigned char key[32] = { 3 }, iv[16] = { 4 };
    const char *work = work_name;
    int tls = strncmp(work, "tls", 3) == 0;
    if (strncmp(work, "rsa", 3) == 0)
        CHECK(rsa = load("rsa.key"));
    if (strcmp(work, "ecdsa") == 0 || strcmp(work, "ecdh") == 0 || strcmp(work, "derive") == 0)
        CHECK((p256 = load("p256.key")) && (p384 = load("p384.key")) && (p521 = load("p521.key")));
    if (strcmp(work, "x25519") == 0 || strcmp(work, "derive") == 0)
        CHECK(x25519 = load("x25519.key"));
    if (strcmp(work, "ed25519") == 0)
        CHECK(ed25519 = load("ed25519.key"));
    if (strcmp(work, "kept") == 0)
        CHECK((kept = EVP_CIPHER_CTX_new()) && EVP_EncryptInit_ex(kept, EVP_aes_256_gcm(), NULL, key, iv));
    if (tls) {
        const char *certificate = strchr(work, '-') ? "p256.crt" : "rsa.crt";
        const char *private = strchr(work, '-') ? "p256.key" : "rsa.key";
        CHECK((server_context = SSL_CTX_new(TLS_server_method())) && (client_context = SSL_CTX_new(TLS_client_method())));
        CHECK(SSL_CTX_use_certificate_file(server_context, certificate, SSL_FILETYPE_PEM) == 1);
        CHECK(SSL_CTX_use_PrivateKey_file(server_context, private, SSL_FILETYPE_PEM) == 1);
    }
    return 1;
}

static int limit(int what)
{
    struct rlimit none = { 0, 0 };
    return setrlimit(what, &none) == 0;
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    const char *place = words[1];
    work_name = words[2];
    emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    for (int at = 4; at < count; at++)
        rule(words[at]);
    emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_TRAP);
    int before = strcmp(place, "before") == 0, good = 0;
    if (before && !confine())
        return 2;
    if (OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, NULL) != 1 || !prepare())
        return 2;
    if (strcmp(place, "chroot") == 0 && (chdir(getenv("EMPTY")) || chroot(".")))
        return 2;
    if (strcmp(place, "limits") == 0 && !(limit(RLIMIT_NPROC) && limit(RLIMIT_NOFILE) && limit(RLIMIT_FSIZE)))
        return 2;
    if (strcmp(place, "strict") == 0) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
            return 2;
        good = many();
        syscall(SYS_exit, !good);
    }
    if (strncmp(place, "fork", 4) == 0 || strcmp(place, "used") == 0) {
        if (strcmp(place, "fork") == 0 && !confine())
            return 2;
        good = in_child(strcmp(place, "fork") != 0, strcmp(place, "used") == 0);
    } else if (strcmp(place, "thread") == 0) {
        pthread_t thread;
        if (!confine() || pthread_create(&thread, NULL, in_thread, &good) || pthread_join(thread, NULL))
            return 2;
    } else {
        if (!before && !confine())
            return 2;
        good = many();
    }
    if (strcmp(words[3], "_exit") == 0)
        _exit(!good);
    return !good;
}
