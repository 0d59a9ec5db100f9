//! The foreign functions and types we use, by AWS-LC's own names.

pub(super) use aws_lc_sys::{
    AES_KEY, AES_cbc_encrypt, AES_ctr128_encrypt, AES_decrypt, AES_encrypt, AES_set_decrypt_key,
    AES_set_encrypt_key, AWSLC_VERSION_NUMBER_STRING, BIGNUM, BN_bin2bn, BN_bn2bin_padded, BN_clear_free,
    EC_GROUP, EC_KEY, EC_KEY_check_key, EC_KEY_free, EC_KEY_generate_key, EC_KEY_get0_private_key,
    EC_KEY_get0_public_key, EC_KEY_new, EC_KEY_set_group, EC_KEY_set_private_key, EC_KEY_set_public_key,
    EC_POINT, EC_POINT_free, EC_POINT_new, EC_POINT_oct2point, EC_POINT_point2oct, EC_group_p256,
    EC_group_p384, ECDH_compute_key, ECDSA_SIG, ECDSA_SIG_free, ECDSA_SIG_get0, ECDSA_SIG_new,
    ECDSA_SIG_set0, ECDSA_do_sign, ECDSA_do_verify, ERR_clear_error, EVP_AEAD, EVP_AEAD_CTX,
    EVP_AEAD_CTX_free, EVP_AEAD_CTX_new, EVP_AEAD_CTX_open_gather, EVP_AEAD_CTX_seal_scatter, EVP_CIPHER_CTX,
    EVP_CIPHER_CTX_copy, EVP_CIPHER_CTX_ctrl, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CTRL_AEAD_GET_TAG,
    EVP_CTRL_AEAD_SET_IVLEN, EVP_CTRL_AEAD_SET_TAG, EVP_Cipher, EVP_CipherInit_ex, EVP_aead_aes_128_gcm,
    EVP_aead_aes_192_gcm, EVP_aead_aes_256_gcm, EVP_aead_chacha20_poly1305, EVP_aes_128_gcm, EVP_aes_192_gcm,
    EVP_aes_256_gcm, OPENSSL_cleanse, RAND_bytes, RSA, RSA_NO_PADDING, RSA_free, RSA_new_private_key_large_e,
    RSA_sign_raw, RSA_verify_raw, SHA_CTX, SHA1_Final, SHA1_Init, SHA1_Update, SHA256_CTX, SHA256_Final,
    SHA256_Init, SHA256_Update, SHA384_Final, SHA384_Init, SHA384_Update, SHA512_CTX, SHA512_Final,
    SHA512_Init, SHA512_Update, X25519, X25519_keypair, X25519_public_from_private, point_conversion_form_t,
};
