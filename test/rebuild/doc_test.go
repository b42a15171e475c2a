// Package rebuild loses Maestro's database in a whole region, with real parts
// in one process (PostgreSQL, broker, lifecycle manager, sentinel, adapter,
// Maestro, agent, an API server), and has it rebuilt. It has no code of its
// own; nothing imports it.
package rebuild
