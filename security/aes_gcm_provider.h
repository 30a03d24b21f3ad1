// AesGcmProvider: AES-256-GCM for OpenSSL from Intel's multi-buffer library (libipsec-mb), which
// uses the CPU's wide instructions (VAES, AVX-512); OpenSSL 3.0 does not, and takes 2.4 times as
// long (docs/performance.md). What is sealed and who may read it is the same.
#pragma once

namespace isthmus::security {

// The property query with which contexts of OpenSSL find the fastest ciphers of this machine. Loads
// the provider, once for the process; any thread, once OpenSSL is initialised as it is to be.
const char* fastest_ciphers();

// Whether there is such a provider at all: the build has the library, which works here. It is
// found as "provider=isthmus" then, whether it is the fastest or not.
bool has_aes_gcm_provider();

}  // namespace isthmus::security
