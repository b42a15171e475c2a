// Package services has the commands that run one process of a region each: its flags, and the
// wiring of the packages that it consists of. No logic is here: a service that needs some has it in
// its own package.
//
// Only packages cli and cli/operator import it.
package services
