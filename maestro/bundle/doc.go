// Package bundle says what Maestro keeps: resource bundles and consumers.
//
// It has the stored records of a spec and a status and their REST form, checks what clients and agents send, and
// decides
// what an update, a deletion or a status changes. It does no I/O. Only package maestro and its packages import it.
package bundle
