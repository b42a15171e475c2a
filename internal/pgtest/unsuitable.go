package pgtest

// UnsuitableSettings returns settings of a server that its owner tuned for other programs. They must not change the
// results of Atoll's sessions, which set each value that they depend on; some statements become slower.
func UnsuitableSettings() map[string]string {
	return map[string]string{
		// Each statement is compiled, inlined and optimised.
		"jit": "on", "jit_above_cost": "0", "jit_inline_above_cost": "0", "jit_optimize_above_cost": "0",

		// Plans: parallel where that is possible, methods switched off, pages that cost nothing, and no memory.
		"parallel_setup_cost": "0", "parallel_tuple_cost": "0", "min_parallel_table_scan_size": "0",
		"min_parallel_index_scan_size": "0",
		"enable_indexscan":             "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off",
		"enable_nestloop": "off",
		"plan_cache_mode": "force_custom_plan", "random_page_cost": "0.01", "effective_cache_size": "'1MB'",
		"work_mem": "'64kB'",

		"default_transaction_isolation": "'serializable'", "default_transaction_deferrable": "on",
		"synchronous_commit": "off",

		// Many seconds, because connecting and setting up a session takes its time on a busy machine.
		"statement_timeout": "'30s'", "lock_timeout": "1", "idle_in_transaction_session_timeout": "1",
		"idle_session_timeout": "'15s'",

		"timezone": "'Pacific/Chatham'", "datestyle": "'SQL, DMY'", "intervalstyle": "'sql_standard'",
		"bytea_output": "'escape'", "extra_float_digits": "-15", "client_encoding": "'LATIN1'",
		"standard_conforming_strings": "off", "transform_null_equals": "on",
		"search_path": "''", "gin_fuzzy_search_limit": "1",
	}
}
