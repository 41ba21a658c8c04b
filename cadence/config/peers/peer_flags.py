"""Every engine flag of vLLM (2026-08), group by group as its help has them, and what becomes of it here: one line each.

The command line, the keywords of `LLM(...)`, the messages and the table in docs/compatibility.md come from these lines.
"""

from __future__ import annotations

from cadence.config.peers.peer_flag import FlagKind, Group, no_effect, refused, works

SWITCH, OBJECT, LIST = FlagKind.SWITCH, FlagKind.OBJECT, FlagKind.LIST

WHOLE_SEQUENCES = "the keys and values of one sequence are not shared out among ranks"
ONE_SERVER = "one server starts all engines of its address, as data_parallel_size says, and numbers them"
OWN_BALANCING = "the server shares requests out among its engines; put a proxy before several servers"
FIXED_RANKS = "the number of ranks is that of the start"
SHARED_WITH_TARGET = "a model that drafts is shared out among the ranks of its target"
RANKS = "how ranks reach each other, and which has what, is chosen when they start"
OWN_CODE = "code that comes with a model is that of its revision, and runs with trust_remote_code alone"
NAMED_CODE = "classes named by a flag are not run"
PREPARED = "recordings are prepared as the model's files say"
NO_IMAGES = "pictures are prepared and encoded in one way, on the devices of the engine"
NO_TOWER = "a tower that sees computes for requests with pictures alone"
NO_VECTORS = "vectors in the place of pictures are not taken"
ONE_ENGINE = "encoders run in the engine that decodes"
BEFORE_TEXT = "a placeholder stands where its picture does, or before the text where a template takes texts alone"
LANGUAGE_ADAPTERS = "adapters are for language models"
NAMED_ADAPTERS = "an adapter is named by the request"
WHOLE_PICTURES = "a picture is encoded whole, whichever step its tokens are in"
ENCODED = "what is kept is what a tower made of a picture, by content"
DIGESTS = "contents are told apart by their SHA-256"
ALL_FRAMES = "all frames that are taken of a video are seen"
STATE_TYPES = "recurrent states are kept in float32, inputs of convolutions in the model's type"
SNAPSHOTS = "prompts go on from snapshots of states, which are taken where prompts end or part"
STATES_ONCE = "a state takes in a token once: drafts when they turn out right"
READER = "files are mapped into memory and read as they are needed"
KERNELS = "kernels are chosen for the device; the option `kernels` names others"
GRAPHS = "decode steps are recorded when first met, or beforehand (`warmup`), or never (`enforce_eager`)"
ON_DEVICE = "the KV cache lives on the device only"
WHOLE = "weights stay on the device whole; take a smaller model or a quantised GGUF"
ADAPTER_TYPE = "adapters keep their own type where the kernels read it, and have the model's elsewhere"
WHOLE_ADAPTER = "an adapter is applied whole, or the answers would be those of another one"
EXPERT_ADAPTERS = "adapters of experts are not read"
ADAPTED = "the number of drafts follows what is accepted and how long forwards take"
EVERY_LENGTH = "drafts of all lengths are verified in one batch"
EXACT_TOKENS = "speculation changes no text here, or no distribution of texts: drafts are accepted by their merit alone"
NO_TRACES = "traces are not in this version; timings are on /metrics"
NO_METRICS = "these metrics are not in this version"
NOT_RETURNED = "this version does not return them"
SCHEDULER = "a request is admitted as soon as there is room for its prompt"
NO_SWAP = "a preempted request is computed again, nothing is swapped"
RESTARTED = "an engine that dies is always started again, and its requests go on"
KV_SCALES = "scales of the KV cache come with the checkpoint, or are found as it is written"
ONE_KV_TYPE = "all layers keep keys and values in one type; choose it with kv_cache_dtype"
BOUND = "threads stay on the cores this process may use; bind it with numactl or taskset"
NEVER_LOGGED = "statistics are never logged; get_metrics and /metrics have them"
LEVELS = ("0", "1", "2", "3", "O0", "O1", "O2", "O3")
TOKENISED = "tokenising has no pool: long texts go to a process of their own"

ENGINE_GROUPS = (
    Group("ModelConfig", (
        works("model", "default: smollm2"),
        works("runner"),
        works("convert"),
        works("tokenizer"),
        works("tokenizer_mode", "mistral reads tekken.json or tokenizer.model.v3; chats by mistral_common",
              hints=("slow",)),
        works("trust_remote_code", "of models that neither we nor transformers know"),
        works("dtype"),
        works("seed"),
        refused("hf_config_path", None, "the configuration lies with the model; change it with hf_overrides"),
        works("allowed_local_media_path"),
        works("allowed_media_domains", "without it nothing is fetched; `*` names all that are public", kind=LIST),
        works("revision"),
        no_effect("code_revision", None, OWN_CODE),
        works("tokenizer_revision"),
        works("max_model_len", "never beyond what the model was made for, unless hf_overrides says so"),
        works("quantization", "a checkpoint says itself how it is quantised; other methods are not read", short="-q"),
        refused("quantization_config", {}, "weights are quantised by `quantization`, or come so in a GGUF file"),
        no_effect("allow_deprecated_quantization", False, "no method of `quantization` is deprecated"),
        works("enforce_eager"),
        refused("enable_return_routed_experts", False, NOT_RETURNED),
        refused("return_sampling_mask", False, NOT_RETURNED),
        works("max_logprobs"),
        works("logprobs_mode"),
        refused("use_fp64_gumbel", False, "noise is kept in float32"),
        refused("enable_trace_replay", False, "this version does not force the tokens of a request"),
        works("disable_sliding_window", "requests are no longer than the window or chunk, so that tokens are the same"),
        no_effect("disable_cascade_attn", True, "there is no cascade attention"),
        works("skip_tokenizer_init"),
        works("served_model_name", "of `cadence serve`", kind=LIST),
        refused("config_format", ("auto", "hf"), "the configuration is read from config.json or from the GGUF file"),
        works("hf_token"),
        works("hf_overrides"),
        works("model_class_overrides", "as docs/how_to_add_a_model.md has classes", kind=OBJECT),
        works("pooler_config", "its keys pooling_type, seq_pooling_type, tok_pooling_type, use_activation, dimensions, "
              "step_tag_id, returned_token_ids", kind=OBJECT),
        works("generation_config"),
        works("override_generation_config"),
        works("enable_sleep_mode", "needed on a GPU alone: an engine on a CPU can always sleep"),
        no_effect("enable_cumem_allocator", False, "memory is allocated by torch"),
        works("model_impl", "`vllm` is our own code, as `cadence` is"),
        refused("logits_processors", [], "name callables in Python: LLM(logits_processors=[...])"),
        refused("io_processor_plugin", None, NAMED_CODE),
        no_effect("renderer_num_workers", 1, TOKENISED),
    )),
    Group("LoadConfig", (
        works("load_format", "weights are read from safetensors, GGUF and PyTorch files",
              hints=("hf", "fastsafetensors", "instanttensor", "runai_streamer")),
        works("download_dir"),
        no_effect("safetensors_load_strategy", "lazy", READER, choices=("lazy", "eager", "prefetch", "torchao")),
        no_effect("safetensors_prefetch_num_threads", None, READER),
        no_effect("safetensors_prefetch_block_size", None, READER),
        no_effect("model_loader_extra_config", {}, READER),
        no_effect("ignore_patterns", [], "only configuration, tokenizer and weights are fetched"),
        works("use_tqdm_on_load"),
        no_effect("pt_load_map_location", "cpu", "tensors are read on the host, whatever device their file names"),
    )),
    Group("AttentionConfig", (
        no_effect("attention_backend", None, KERNELS),
    )),
    Group("MambaConfig", (
        no_effect("mamba_backend", "triton", KERNELS),
        no_effect("mamba_ssu_algorithm", None, KERNELS),
        no_effect("enable_mamba_cache_stochastic_rounding", False, STATE_TYPES),
        no_effect("mamba_cache_philox_rounds", 0, STATE_TYPES),
    )),
    Group("StructuredOutputsConfig", (
        works("reasoning_parser", "of `cadence serve`"),
        works("reasoning_parser_plugin", "of `cadence serve`; as --tool-parser-plugin"),
    )),
    Group("ParallelConfig", (
        works("distributed_executor_backend", "`uni`, `mp` or `ray`"),
        works("pipeline_parallel_size", short="-pp"),
        works("master_addr"),
        works("master_port"),
        works("nnodes", "with `node_secret_file`, so that no stranger joins", short="-n"),
        works("node_rank", short="-r"),
        no_effect("distributed_timeout_seconds", None, RANKS),
        no_effect("cpu_distributed_timeout_seconds", None, RANKS),
        no_effect("numa_bind", False, BOUND),
        no_effect("numa_bind_nodes", [], BOUND),
        no_effect("numa_bind_cpus", [], BOUND),
        works("device_ids", "numbers, one for each rank; a number that is named twice is a GPU that ranks share"),
        works("tensor_parallel_size", "processes that share each layer", short="-tp"),
        refused("decode_context_parallel_size", 1, WHOLE_SEQUENCES, short="-dcp"),
        no_effect("dcp_comm_backend", None, RANKS, choices=("ag_rs", "a2a")),
        no_effect("dcp_q_replicate", False, RANKS),
        no_effect("dcp_kv_cache_interleave_size", 1, RANKS),
        no_effect("cp_kv_cache_interleave_size", 1, RANKS),
        refused("prefill_context_parallel_size", 1, WHOLE_SEQUENCES, short="-pcp"),
        works("data_parallel_size", "engines that requests are shared out among", short="-dp"),
        refused("data_parallel_rank", 0, ONE_SERVER, short="-dpn"),
        refused("data_parallel_start_rank", 0, ONE_SERVER, short="-dpr"),
        refused("data_parallel_size_local", 1, ONE_SERVER, short="-dpl"),
        no_effect("data_parallel_address", None, RANKS, short="-dpa"),
        no_effect("data_parallel_rpc_port", None, RANKS, short="-dpp"),
        no_effect("data_parallel_backend", "mp", RANKS, short="-dpb", choices=("mp", "ray")),
        refused("data_parallel_hybrid_lb", False, OWN_BALANCING, short="-dph"),
        refused("data_parallel_external_lb", False, OWN_BALANCING, short="-dpe"),
        refused("data_parallel_multi_port_external_lb", False, OWN_BALANCING, short="-dpm"),
        works("enable_expert_parallel", "ranks have whole experts of each layer", short="-ep", kind=SWITCH),
        no_effect("enable_ep_weight_filter", False, RANKS),
        no_effect("all2all_backend", "allgather_reducescatter", RANKS),
        no_effect("enable_dbo", False, RANKS),
        no_effect("ubatch_size", 0, RANKS),
        refused("enable_elastic_ep", False, FIXED_RANKS),
        no_effect("dbo_decode_token_threshold", 32, RANKS),
        no_effect("dbo_prefill_token_threshold", 512, RANKS),
        no_effect("disable_nccl_for_dp_synchronization", False, RANKS),
        no_effect("enable_eplb", False, RANKS),
        no_effect("eplb_config", {}, RANKS),
        no_effect("expert_placement_strategy", "linear", RANKS, choices=("linear", "round_robin")),
        no_effect("max_parallel_loading_workers", None, RANKS),
        refused("ray_workers_use_nsight", False, "ranks are not profiled; LLM(..., profiler_config=...) is"),
        no_effect("disable_custom_all_reduce", False, RANKS),
        refused("worker_cls", "auto", NAMED_CODE),
        refused("worker_extension_cls", "", NAMED_CODE),
        no_effect("enable_fault_tolerance", False, RESTARTED),
        no_effect("fault_tolerance_config", {}, RESTARTED),
    )),
    Group("CacheConfig", (
        works("block_size"),
        works("gpu_memory_utilization", "on a GPU"),
        works("kv_cache_memory_bytes"),
        works("kv_cache_dtype", "fp8_inc, fp8_ds_mla, nvfp4 and the like are not in this version"),
        works("num_gpu_blocks_override"),
        works("enable_prefix_caching"),
        no_effect("prefix_caching_hash_algo", "sha256", "the prefix cache always uses SHA-256",
                  choices=("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")),
        no_effect("prefix_cache_retention_interval", 0, "all blocks are kept until their room is needed"),
        refused("kv_cache_dtype_skip_layers", [], ONE_KV_TYPE),
        no_effect("kv_sharing_fast_prefill", False, "no family that shares keys between layers is in this version"),
        no_effect("mamba_cache_dtype", "auto", STATE_TYPES),
        no_effect("mamba_ssm_cache_dtype", "auto", STATE_TYPES),
        no_effect("mamba_block_size", None, SNAPSHOTS),
        no_effect("prefix_match_unit", None, "a hit of the prefix cache ends with a block (block_size)"),
        no_effect("mamba_cache_mode", "none", SNAPSHOTS),
        no_effect("replayssm_buffer_len", 16, STATES_ONCE),
        no_effect("use_replayssm", False, STATES_ONCE),
        refused("kv_offloading_size", 0, ON_DEVICE),
        no_effect("kv_offloading_backend", "native", ON_DEVICE),
    )),
    Group("OffloadConfig", (
        no_effect("offload_backend", "auto", WHOLE),
        refused("cpu_offload_gb", 0, WHOLE),
        no_effect("cpu_offload_params", [], WHOLE),
        refused("offload_group_size", 0, WHOLE),
        no_effect("offload_num_in_group", 1, WHOLE),
        no_effect("offload_prefetch_step", 1, WHOLE),
        no_effect("offload_params", [], WHOLE),
    )),
    Group("MultiModalConfig", (
        no_effect("language_model_only", (False, True), NO_TOWER),
        works("limit_mm_per_prompt", "64 pictures and 4 videos, unless it is said"),
        refused("enable_mm_embeds", False, NO_VECTORS),
        works("media_io_kwargs", "of videos num_frames (32; -1 = all) and fps"),
        works("mm_processor_kwargs", "fields of preprocessor_config.json, min_pixels and max_pixels, fps of frames"),
        works("mm_processor_cache_gb", "of pictures that came with a name, in each process that takes requests"),
        no_effect("mm_processor_cache_type", "lru", ENCODED),
        no_effect("mm_hasher_algorithm", "blake3", DIGESTS),
        no_effect("mm_shm_cache_max_object_size_mb", 128, ENCODED),
        refused("mm_encoder_only", False, ONE_ENGINE),
        no_effect("mm_encoder_tp_mode", "weights", NO_IMAGES),
        no_effect("mm_encoder_attn_backend", None, NO_IMAGES),
        no_effect("mm_encoder_attn_dtype", None, NO_IMAGES),
        no_effect("mm_encoder_fp8_scale_path", None, NO_IMAGES),
        no_effect("mm_encoder_fp8_scale_save_path", None, NO_IMAGES),
        no_effect("mm_encoder_fp8_scale_save_margin", 1.5, NO_IMAGES),
        no_effect("interleave_mm_strings", False, BEFORE_TEXT),
        no_effect("skip_mm_profiling", False, NO_IMAGES),
        no_effect("video_pruning_rate", None, ALL_FRAMES),
        no_effect("video_pruning_method", "evs", ALL_FRAMES),
        no_effect("mm_tensor_ipc", "direct_rpc", NO_IMAGES),
        no_effect("mm_processor_device", "auto", NO_IMAGES),
        no_effect("mm_ipc_gpu_memory_gb", 0, NO_IMAGES),
        no_effect("mm_device_do_normalize", True, NO_IMAGES),
    )),
    Group("LoRAConfig", (
        works("enable_lora"),
        works("max_loras"),
        works("max_lora_rank", "any rank"),
        no_effect("lora_dtype", "auto", ADAPTER_TYPE),
        refused("enable_tower_connector_lora", False, LANGUAGE_ADAPTERS),
        works("max_cpu_loras"),
        no_effect("fully_sharded_loras", False, RANKS),
        refused("lora_target_modules", [], WHOLE_ADAPTER),
        no_effect("default_mm_loras", {}, NAMED_ADAPTERS),
        no_effect("specialize_active_lora", False, "kernels take as long as the adapters of a batch need"),
        no_effect("enable_mixed_moe_lora_format", False, EXPERT_ADAPTERS),
        no_effect("enable_moe_shared_loras", False, EXPERT_ADAPTERS),
    )),
    Group("ObservabilityConfig", (
        no_effect("show_hidden_metrics_for_version", None, "no metric is hidden"),
        refused("otlp_traces_endpoint", None, NO_TRACES),
        refused("collect_detailed_traces", [], NO_TRACES),
        refused("per_request_spec_decode_metrics", "none", "/metrics counts drafts, and outputs in Python have them"),
        refused("kv_cache_metrics", False, NO_METRICS),
        no_effect("kv_cache_metrics_sample", 0.01, NO_METRICS),
        refused("cudagraph_metrics", False, NO_METRICS),
        refused("enable_layerwise_nvtx_tracing", False, NO_TRACES),
        refused("enable_mfu_metrics", False, NO_METRICS),
        refused("enable_logging_iteration_details", False, "steps are counted on /metrics and not logged"),
        refused("jit_monitor_mode", "warn", "a kernel that is compiled late is no error here"),
        no_effect("jit_monitor_verbose", False, "kernels that are compiled late are not watched"),
    )),
    Group("SchedulerConfig", (
        works("max_num_batched_tokens"),
        refused("max_num_scheduled_tokens", None, "the tokens of a step are limited by max_num_batched_tokens"),
        works("max_num_seqs"),
        works("long_prefill_token_threshold"),
        works("scheduling_policy", "`fair` unless given: as fcfs, but several tenants take turns"),
        works("enable_chunked_prefill"),
        no_effect("disable_chunked_mm_input", False, WHOLE_PICTURES),
        refused("scheduler_cls", None, NAMED_CODE),
        no_effect("scheduler_reserve_full_isl", True, SCHEDULER),
        no_effect("watermark", 0, SCHEDULER),
        no_effect("prefill_schedule_interval", 1, RANKS),
        no_effect("disable_hybrid_kv_cache_manager", False, "layers with a window keep what is in it, and no more"),
        works("async_scheduling"),
        works("stream_interval", "of `cadence serve`; requests may bring their own"),
    )),
    Group("CompilationConfig", (
        no_effect("cudagraph_capture_sizes", [], GRAPHS),
        no_effect("max_cudagraph_capture_size", None, GRAPHS),
    )),
    Group("KernelConfig", (
        no_effect("ir_op_priority", {}, KERNELS),
        no_effect("enable_flashinfer_autotune", False, KERNELS),
        no_effect("enable_bf16x3_router_gemm", False, KERNELS),
        no_effect("moe_backend", "auto", KERNELS),
        no_effect("linear_backend", "auto", KERNELS),
    )),
    Group("VllmConfig", (
        works("speculative_config", "its keys have a table of their own below", kind=OBJECT, short="-sc"),
        works("spec_method", "as speculative_config.method", means="speculative_config.method"),
        works("spec_model", "as speculative_config.model", means="speculative_config.model"),
        works("spec_tokens", "as speculative_config.num_speculative_tokens",
              means="speculative_config.num_speculative_tokens"),
        refused("diffusion_config", {}, "diffusion models are not in this version", short="-dc"),
        refused("kv_transfer_config", {}, ON_DEVICE),
        refused("kv_events_config", {}, "events of the KV cache are not published in this version"),
        refused("ec_transfer_config", {}, ONE_ENGINE),
        no_effect("ec_manager_config", {}, ONE_ENGINE),
        no_effect("compilation_config", {}, GRAPHS, short="-cc"),
        no_effect("attention_config", {}, KERNELS, short="-ac"),
        refused("reasoning_config", {}, "the marks of reasoning are those of the reasoning_parser"),
        no_effect("kernel_config", {}, KERNELS),
        no_effect("additional_config", {}, "it is for other platforms"),
        works("structured_outputs_config", "its keys backend and disable_any_whitespace", kind=OBJECT),
        refused("profiler_config", {}, "only an LLM object writes profiles: LLM(..., profiler_config=...)"),
        no_effect("optimization_level", (2, "2", "O2"), GRAPHS, short="-O", choices=LEVELS),
        no_effect("performance_mode", "balanced", "the scheduler weighs streams against prompts by max_inter_token_ms",
                  choices=("balanced", "interactivity", "throughput")),
        refused("weight_transfer_config", {}, "other weights come by update_weights, from a folder or by name"),
    )),
    Group("EngineArgs", (
        no_effect("disable_log_stats", False, NEVER_LOGGED),
        no_effect("aggregate_engine_logging", False, NEVER_LOGGED),
        refused("fail_on_environ_validation", False, "variables that have no effect are named in the log"),
        works("shutdown_timeout", "of `cadence serve`; default 30, and 0 = no limit"),
        no_effect("gdn_prefill_backend", None, KERNELS),
        no_effect("kda_prefill_backend", None, KERNELS),
        works("enable_log_requests", "of `cadence serve`; one line per request, never its text", kind=SWITCH),
    )),
)  # fmt: skip

# Removed over there, and still in scripts.
REMOVED = Group("Removed", (
    works("device"),
    works("num_scheduler_steps", "forwards per plan; automatic unless given"),
    works("task", "as runner and convert"),
    works("rope_scaling", "as hf_overrides.rope_scaling", kind=OBJECT, means="hf_overrides.rope_scaling"),
    works("rope_theta", "as hf_overrides.rope_theta", means="hf_overrides.rope_theta"),
    no_effect("enable_reasoning", False, "the reasoning_parser says it"),
    no_effect("disable_log_requests", (), "requests are logged only with enable_log_requests", kind=SWITCH),
    no_effect("multi_step_stream_outputs", (), "outputs always stream", kind=SWITCH),
    no_effect("num_lookahead_slots", 0, "space ahead is reserved as needed"),
    no_effect("use_v2_block_manager", (), "there is one block manager", kind=SWITCH),
    no_effect("swap_space", 0, NO_SWAP),
    no_effect("preemption_mode", None, NO_SWAP),
    no_effect("scheduler_delay_factor", 0, SCHEDULER),
    no_effect("disable_async_output_proc", False, "outputs are processed in order"),
    works("guided_decoding_backend", "as structured_outputs_config.backend",
          means="structured_outputs_config.backend"),
    no_effect("max_seq_len_to_capture", None, "recorded decode steps serve sequences of every length"),
    no_effect("calculate_kv_scales", False, KV_SCALES),
    refused("qlora_adapter_name_or_path", None, "requests name their adapters: enable_lora"),
    refused("enable_prompt_adapter", False, "prompt adapters are not in this version"),
    no_effect("max_prompt_adapters", None, "prompt adapters are not in this version"),
    no_effect("max_prompt_adapter_token", None, "prompt adapters are not in this version"),
    no_effect("lora_extra_vocab_size", 256, "adapters have the vocabulary of the model"),
    refused("long_lora_scaling_factors", None, "adapters are for the context of the model"),
    no_effect("enable_lora_bias", False, "the biases of an adapter are always applied"),
    no_effect("max_num_partial_prefills", 1, "every request may be prefilled in parts"),
    no_effect("max_long_partial_prefills", 1, "every request may be prefilled in parts"),
    refused("worker_use_ray", False, "use distributed_executor_backend=ray"),
    works("override_pooler_config", "as pooler_config", kind=OBJECT, means="pooler_config"),
    no_effect("override_neuron_config", {}, "it is for other platforms"),
    no_effect("disable_mm_preprocessor_cache", False, ENCODED),
    no_effect("tokenizer_pool_size", 0, TOKENISED),
    no_effect("tokenizer_pool_type", None, TOKENISED),
    no_effect("tokenizer_pool_extra_config", {}, TOKENISED),
    refused("quantization_param_path", None, KV_SCALES),
    no_effect("logits_processor_pattern", None, "logits processors are given as callables"),
    works("speculative_model", "as speculative_config.model", means="speculative_config.model"),
    works("num_speculative_tokens", "as speculative_config.num_speculative_tokens",
          means="speculative_config.num_speculative_tokens"),
    refused("speculative_draft_tensor_parallel_size", 1, SHARED_WITH_TARGET),
    works("speculative_max_model_len", "as speculative_config.max_model_len", means="speculative_config.max_model_len"),
    no_effect("speculative_disable_by_batch_size", None, ADAPTED),
    no_effect("speculative_disable_mqa_scorer", False, EVERY_LENGTH),
    refused("speculative_model_quantization", None, "a draft model is read as it is stored; GGUF files are quantised"),
    works("ngram_prompt_lookup_max", "as speculative_config.prompt_lookup_max",
          means="speculative_config.prompt_lookup_max"),
    works("ngram_prompt_lookup_min", "as speculative_config.prompt_lookup_min",
          means="speculative_config.prompt_lookup_min"),
    refused("spec_decoding_acceptance_method", "rejection_sampler", EXACT_TOKENS),
    no_effect("typical_acceptance_sampler_posterior_threshold", None, EXACT_TOKENS),
    no_effect("typical_acceptance_sampler_posterior_alpha", None, EXACT_TOKENS),
    no_effect("disable_logprobs_during_spec_decoding", False, "logprobs are given to requests that ask for them"),
))  # fmt: skip
