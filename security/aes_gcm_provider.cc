#include "security/aes_gcm_provider.h"

#ifdef ISTHMUS_IPSEC_MB

#include <intel-ipsec-mb.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/provider.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace isthmus::security {
namespace {

constexpr std::size_t kCipherKeyBytes = 32, kNonceBytes = 12, kTagBytes = 16;

// Null: it does not work here. Never changed once it is made: its functions may run on all threads.
IMB_MGR* try_library() {
  static IMB_MGR* const made = []() -> IMB_MGR* {
    auto* manager = alloc_mb_mgr(0);
    if (manager == nullptr) return nullptr;
    init_mb_mgr_auto(manager, nullptr);
    if (imb_get_errno(manager) == 0 && (manager->features & IMB_FEATURE_SELF_TEST_PASS) != 0)
      return manager;
    free_mb_mgr(manager);
    return nullptr;
  }();
  return made;
}
IMB_MGR& library() { return *try_library(); }

// One direction of one connection, as OpenSSL drives it (provider-cipher(7)): a key, then for each
// record a nonce, the associated data in one piece, the bytes, the tag.
class Cipher {
 public:
  ~Cipher() {
    OPENSSL_cleanse(&key_, sizeof key_);
    OPENSSL_cleanse(&state_, sizeof state_);
  }

  bool begin(bool sealing, const unsigned char* key, std::size_t key_bytes,
             const unsigned char* nonce, std::size_t nonce_bytes) {
    sealing_ = sealing;
    stage_ = Stage::idle;
    if (key != nullptr) {
      if (key_bytes != kCipherKeyBytes) return false;
      IMB_AES256_GCM_PRE(&library(), key, &key_);
      has_key_ = true;
    }
    if (nonce == nullptr) return true;
    if (nonce_bytes != kNonceBytes) return false;
    std::memcpy(nonce_.data(), nonce, kNonceBytes);
    stage_ = Stage::has_nonce;
    return true;
  }

  // `out` is null for associated data. Written is as much as was read.
  bool update(unsigned char* out, const unsigned char* in, std::size_t bytes) {
    if (out == nullptr) return start(in, bytes);
    if (stage_ != Stage::started && !start(nullptr, 0)) return false;
    if (sealing_)
      IMB_AES256_GCM_ENC_UPDATE(&library(), &key_, &state_, out, in, bytes);
    else
      IMB_AES256_GCM_DEC_UPDATE(&library(), &key_, &state_, out, in, bytes);
    return true;
  }

  // The nonce is used up.
  bool finish() {
    if (stage_ != Stage::started && !start(nullptr, 0)) return false;
    stage_ = Stage::idle;
    if (sealing_) {
      IMB_AES256_GCM_ENC_FINALIZE(&library(), &key_, &state_, tag_.data(), kTagBytes);
      return has_tag_ = true;
    }
    std::array<unsigned char, kTagBytes> tag;
    IMB_AES256_GCM_DEC_FINALIZE(&library(), &key_, &state_, tag.data(), kTagBytes);
    return std::exchange(has_tag_, false) && CRYPTO_memcmp(tag.data(), tag_.data(), kTagBytes) == 0;
  }

  bool set(const OSSL_PARAM params[]) {
    for (auto* p = params; p != nullptr && p->key != nullptr; ++p) {
      const std::string_view name = p->key;
      std::size_t bytes = 0;
      if (name == OSSL_CIPHER_PARAM_AEAD_TAG) {
        if (sealing_ || p->data == nullptr || p->data_size != kTagBytes) return false;
        std::memcpy(tag_.data(), p->data, kTagBytes);
        has_tag_ = true;
      } else if (name == OSSL_CIPHER_PARAM_AEAD_IVLEN) {
        if (OSSL_PARAM_get_size_t(p, &bytes) != 1 || bytes != kNonceBytes) return false;
      } else if (name == OSSL_CIPHER_PARAM_KEYLEN) {
        if (OSSL_PARAM_get_size_t(p, &bytes) != 1 || bytes != kCipherKeyBytes) return false;
      }
    }
    return true;
  }

  bool get(OSSL_PARAM params[]) const {
    for (auto* p = params; p->key != nullptr; ++p) {
      const std::string_view name = p->key;
      bool given = true;
      if (name == OSSL_CIPHER_PARAM_KEYLEN)
        given = OSSL_PARAM_set_size_t(p, kCipherKeyBytes) == 1;
      else if (name == OSSL_CIPHER_PARAM_AEAD_IVLEN)
        given = OSSL_PARAM_set_size_t(p, kNonceBytes) == 1;
      else if (name == OSSL_CIPHER_PARAM_AEAD_TAGLEN)
        given = OSSL_PARAM_set_size_t(p, kTagBytes) == 1;
      else if (name == OSSL_CIPHER_PARAM_AEAD_TAG)
        given = sealing_ && has_tag_ && p->data_size <= kTagBytes &&
                OSSL_PARAM_set_octet_string(p, tag_.data(), p->data_size) == 1;
      if (!given) return false;
    }
    return true;
  }

 private:
  enum class Stage { idle, has_nonce, started };

  bool start(const unsigned char* associated, std::size_t bytes) {
    if (!has_key_ || stage_ != Stage::has_nonce) return false;
    IMB_AES256_GCM_INIT(&library(), &key_, &state_, nonce_.data(), associated, bytes);
    stage_ = Stage::started;
    return true;
  }

  alignas(64) gcm_key_data key_;
  gcm_context_data state_{};
  std::array<unsigned char, kNonceBytes> nonce_{};
  std::array<unsigned char, kTagBytes> tag_{};  // made, or to be found
  Stage stage_ = Stage::idle;
  bool sealing_ = true, has_key_ = false, has_tag_ = false;
};

Cipher& cipher_of(void* context) { return *static_cast<Cipher*>(context); }

void* new_context(void*) { return new (std::nothrow) Cipher; }
void free_context(void* context) { delete static_cast<Cipher*>(context); }

template <bool sealing>
int begin(void* context, const unsigned char* key, std::size_t key_bytes,
          const unsigned char* nonce, std::size_t nonce_bytes, const OSSL_PARAM params[]) {
  auto& cipher = cipher_of(context);
  return cipher.begin(sealing, key, key_bytes, nonce, nonce_bytes) && cipher.set(params) ? 1 : 0;
}

int update(void* context, unsigned char* out, std::size_t* written, std::size_t room,
           const unsigned char* in, std::size_t bytes) {
  *written = bytes;
  return (out == nullptr || bytes <= room) && cipher_of(context).update(out, in, bytes) ? 1 : 0;
}

int finish(void* context, unsigned char*, std::size_t* written, std::size_t) {
  *written = 0;
  return cipher_of(context).finish() ? 1 : 0;
}

int set_parameters(void* context, const OSSL_PARAM params[]) {
  return cipher_of(context).set(params) ? 1 : 0;
}
int get_parameters(void* context, OSSL_PARAM params[]) {
  return cipher_of(context).get(params) ? 1 : 0;
}

// Of the cipher itself.
int describe(OSSL_PARAM params[]) {
  for (auto* p = params; p->key != nullptr; ++p) {
    const std::string_view name = p->key;
    int given = 1;
    if (name == OSSL_CIPHER_PARAM_MODE)
      given = OSSL_PARAM_set_uint(p, EVP_CIPH_GCM_MODE);
    else if (name == OSSL_CIPHER_PARAM_KEYLEN)
      given = OSSL_PARAM_set_size_t(p, kCipherKeyBytes);
    else if (name == OSSL_CIPHER_PARAM_IVLEN)
      given = OSSL_PARAM_set_size_t(p, kNonceBytes);
    else if (name == OSSL_CIPHER_PARAM_BLOCK_SIZE)
      given = OSSL_PARAM_set_size_t(p, 1);
    else if (name == OSSL_CIPHER_PARAM_AEAD || name == OSSL_CIPHER_PARAM_CUSTOM_IV)
      given = OSSL_PARAM_set_int(p, 1);
    if (given != 1) return 0;
  }
  return 1;
}

const OSSL_PARAM* gettable(void*) {
  static const OSSL_PARAM all[] = {OSSL_PARAM_uint(OSSL_CIPHER_PARAM_MODE, nullptr),
                                   OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_KEYLEN, nullptr),
                                   OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_IVLEN, nullptr),
                                   OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_BLOCK_SIZE, nullptr),
                                   OSSL_PARAM_int(OSSL_CIPHER_PARAM_AEAD, nullptr),
                                   OSSL_PARAM_int(OSSL_CIPHER_PARAM_CUSTOM_IV, nullptr),
                                   OSSL_PARAM_END};
  return all;
}
const OSSL_PARAM* gettable_of_context(void*, void*) {
  static const OSSL_PARAM all[] = {OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_KEYLEN, nullptr),
                                   OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_IVLEN, nullptr),
                                   OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_TAGLEN, nullptr),
                                   OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, nullptr, 0),
                                   OSSL_PARAM_END};
  return all;
}
const OSSL_PARAM* settable_of_context(void*, void*) {
  static const OSSL_PARAM all[] = {OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_KEYLEN, nullptr),
                                   OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_IVLEN, nullptr),
                                   OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, nullptr, 0),
                                   OSSL_PARAM_END};
  return all;
}

// OpenSSL knows a function by its number; what that number takes is checked here.
template <class Wanted>
OSSL_DISPATCH entry(int number, Wanted* function) {
  return {number, reinterpret_cast<void (*)()>(function)};
}

const OSSL_DISPATCH kCipher[] = {
    entry<OSSL_FUNC_cipher_newctx_fn>(OSSL_FUNC_CIPHER_NEWCTX, new_context),
    entry<OSSL_FUNC_cipher_freectx_fn>(OSSL_FUNC_CIPHER_FREECTX, free_context),
    entry<OSSL_FUNC_cipher_encrypt_init_fn>(OSSL_FUNC_CIPHER_ENCRYPT_INIT, begin<true>),
    entry<OSSL_FUNC_cipher_decrypt_init_fn>(OSSL_FUNC_CIPHER_DECRYPT_INIT, begin<false>),
    entry<OSSL_FUNC_cipher_update_fn>(OSSL_FUNC_CIPHER_UPDATE, update),
    entry<OSSL_FUNC_cipher_final_fn>(OSSL_FUNC_CIPHER_FINAL, finish),
    entry<OSSL_FUNC_cipher_get_params_fn>(OSSL_FUNC_CIPHER_GET_PARAMS, describe),
    entry<OSSL_FUNC_cipher_get_ctx_params_fn>(OSSL_FUNC_CIPHER_GET_CTX_PARAMS, get_parameters),
    entry<OSSL_FUNC_cipher_set_ctx_params_fn>(OSSL_FUNC_CIPHER_SET_CTX_PARAMS, set_parameters),
    entry<OSSL_FUNC_cipher_gettable_params_fn>(OSSL_FUNC_CIPHER_GETTABLE_PARAMS, gettable),
    entry<OSSL_FUNC_cipher_gettable_ctx_params_fn>(OSSL_FUNC_CIPHER_GETTABLE_CTX_PARAMS,
                                                   gettable_of_context),
    entry<OSSL_FUNC_cipher_settable_ctx_params_fn>(OSSL_FUNC_CIPHER_SETTABLE_CTX_PARAMS,
                                                   settable_of_context),
    {0, nullptr}};

const OSSL_ALGORITHM kCiphers[] = {{"AES-256-GCM:id-aes256-GCM:2.16.840.1.101.3.4.1.46",
                                    "provider=isthmus", kCipher, "AES-256-GCM of libipsec-mb"},
                                   {nullptr, nullptr, nullptr, nullptr}};

const OSSL_ALGORITHM* query(void*, int operation, int* not_cached) {
  *not_cached = 0;
  return operation == OSSL_OP_CIPHER ? kCiphers : nullptr;
}

const OSSL_DISPATCH kProvider[] = {
    entry<OSSL_FUNC_provider_query_operation_fn>(OSSL_FUNC_PROVIDER_QUERY_OPERATION, query),
    {0, nullptr}};

int initialise(const OSSL_CORE_HANDLE*, const OSSL_DISPATCH*, const OSSL_DISPATCH** functions,
               void** context) {
  *functions = kProvider;
  *context = &library();  // not null, as OpenSSL wants it
  return 1;
}

}  // namespace

bool has_aes_gcm_provider() {
  // Kept where they can be reached: connections use them as long as the process runs, and nobody
  // unloads them. The default one by name: it is loaded by itself only where there is no other.
  static const auto* const standard =
      try_library() != nullptr ? OSSL_PROVIDER_load(nullptr, "default") : nullptr;
  static const auto* const ours =
      standard != nullptr && OSSL_PROVIDER_add_builtin(nullptr, "isthmus", initialise) == 1
          ? OSSL_PROVIDER_load(nullptr, "isthmus")
          : nullptr;
  return ours != nullptr;
}

const char* fastest_ciphers() {
  constexpr std::uint64_t kWide =
      IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
  if (!has_aes_gcm_provider()) return "";
  return (library().features & kWide) == kWide ? "?provider=isthmus" : "?provider=default";
}

}  // namespace isthmus::security

#else

namespace isthmus::security {

bool has_aes_gcm_provider() { return false; }
const char* fastest_ciphers() { return ""; }

}  // namespace isthmus::security

#endif
