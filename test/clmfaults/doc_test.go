// Package clmfaults drives a whole lifecycle manager, API servers, sentinels,
// adapters and a broker, each a process of its own, on a real PostgreSQL,
// through a storm of creates, patches and deletions in which each of them is
// killed again and again, and then compares what there is with what was asked.
// It has no code of its own; nothing imports it.
package clmfaults
