# The library that libFuzzer's targets link: only the files that decode, and what these need. All of
# the layers would take clang far longer than the fuzzing itself.
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(PkgConfig REQUIRED)
foreach(package libhwy libxxhash libsodium libzstd libzmq libpcre2-8 libutf8proc)
  pkg_check_modules(${package} REQUIRED IMPORTED_TARGET ${package})
endforeach()

set(DECODERS
  base assert buffer_pool clock disk event_log line_file machine_memory printable random result
        workers
  kernels bf16 blake2s_columns block_int8 leaf_hash outer_arithmetic outer_step stream_copy
        vector_targets
  security aes_gcm_provider hash hex identity roster roster_memory roster_signature secret
        secret_file signature signing_key sodium_ready tls_stream
  compress bf16_codec codec f32_codec int8_codec zstd_stage
  inter agreement attach_client attach_listener attach_messages attach_server attached_values
        box_runs bulk_pace bulk_sender bulk_width chunk_seal common_parts congestion_control
        contribution contribution_store disk_jobs encoding exchange exchange_arrivals exchange_fetch
        exchange_own forward_delay gateway gateway_apply gateway_ballots gateway_divergence
        gateway_end gateway_founding gateway_link_test gateway_messages gateway_ranks
        gateway_records gateway_start gateway_status line_pace link link_frames link_session
        link_test_data link_test_frames link_tester link_test_report local_socket loop loop_mailbox
        messages model_layout outer_state outer_store outer_store_slots owned_tasks peers
        polite_rate rank_values record record_server returning_sites said_in_step saved_states sending_watch
        shared_memory state_fetcher state_server status step_computation sync_options tcp_address tcp_facts
        tested_bytes tls_connection tls_lane sim/access_link sim/scenario sim/simulated_dialing
        sim/simulated_disk sim/simulated_network sim/simulated_process sim/storm sim/synthetic_ranks
        sim/tcp_stream sim/vote_watch
  runtime added_tokens bert bert_text bpe_tokenizer byte_tokenizer decoder document_layout family
        llama metrics_log mixtral model_config model_description program qwen2_moe qwen3 qwen3_moe
        rope_scaling routing routing_report safetensors sampled_digest stored_model token_file
        tokenizer_file tokenizer_json trainer_file unicode_nfc utf8_state word_pattern
        wordpiece_file wordpiece_tokenizer
  launcher event_sentence event_tail fault nearest_name rate_windows report roster_file
        scenario_file seed_record site_file site_keys site_keys_gateway site_keys_model
        site_keys_sync site_keys_training site_schema toml_reader traffic units wrapped_text)
foreach(word ${DECODERS})
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${word})
    set(folder ${word})
    continue()
  endif()
  set(source ${PROJECT_SOURCE_DIR}/${folder}/${word}.cc)
  list(APPEND sources ${source})
  if(folder STREQUAL kernels)
    # Arithmetic decodes nothing, and clang takes minutes to optimise and instrument it.
    set_source_files_properties(${source} PROPERTIES
      COMPILE_OPTIONS "-O0;-fno-sanitize=all" COMPILE_DEFINITIONS HWY_COMPILE_ONLY_STATIC SKIP_PRECOMPILE_HEADERS ON)
  endif()
endforeach()

add_library(fuzz_base STATIC ${sources} ${FUZZ_HELPERS})
target_include_directories(fuzz_base PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(fuzz_base PUBLIC isthmus_flags fmt::fmt Threads::Threads Boost::headers OpenSSL::SSL
  nlohmann_json::nlohmann_json tomlplusplus::tomlplusplus PkgConfig::libhwy PkgConfig::libxxhash
  PkgConfig::libsodium PkgConfig::libzstd PkgConfig::libzmq PkgConfig::libpcre2-8 PkgConfig::libutf8proc)
# Half of the time goes into reading these.
target_precompile_headers(fuzz_base PRIVATE
  <fmt/format.h> <tl/expected.hpp> <algorithm> <array> <functional> <map> <memory> <optional> <set> <string> <vector>
  <boost/asio/awaitable.hpp> <boost/asio/co_spawn.hpp> <boost/asio/io_context.hpp> <boost/asio/ip/tcp.hpp>
  <boost/asio/posix/stream_descriptor.hpp> <boost/asio/redirect_error.hpp> <boost/asio/steady_timer.hpp>
  <boost/asio/use_awaitable.hpp>)
# Asio's headers bring <netinet/tcp.h>, which <linux/tcp.h> does not go with.
set_source_files_properties(${PROJECT_SOURCE_DIR}/inter/tcp_facts.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
