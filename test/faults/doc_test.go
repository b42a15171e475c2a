// Package faults drives whole parts of a region, servers, broker and agents,
// each server and agent a process of its own, through every fault that the
// design allows for, and then compares what each cluster holds with what was
// asked. It has no code of its own; nothing imports it.
package faults
