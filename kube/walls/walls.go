// Package walls shuts the process in, so that a fault in it reaches neither the files of others nor the network of the
// machine. Decision 110 says which walls there are and who builds each.
package walls

import (
	"errors"
	"fmt"
)

// Names of walls, as the file "ready" lists them.
const (
	Network    = "network"    // the process is in a network namespace with nothing but loopback
	Privileges = "privileges" // it has no capabilities, and no program that it starts can get any
	Files      = "files"      // it opens only what is below its data directory, and starts no program (Landlock)
	Mounts     = "mounts"     // it sees no file tree but its own: no sockets, no files of others, no programs
	User       = "user"       // it has a user id that no other process has
	Calls      = "syscalls"   // it makes no system call that no plane needs (seccomp)
)

// ErrNoLoopback says that the loopback interface of the network namespace cannot be used.
var ErrNoLoopback = errors.New("the loopback interface is down and cannot be brought up")

// Options say which walls are built.
type Options struct {
	Dir     string // the only directory that stays open for reading and writing
	Network Namespace
	Mounts  Namespace // Own: the file tree is narrowed
	User    int       // the process, root until now, becomes this user and group; 0: it stays who it is
}

// Namespace says in whose namespace the process is.
type Namespace int

// Namespaces.
const (
	Shared Namespace = iota // the machine's
	Own                     // made by the starter for this process alone
)

// Build builds the walls and returns the names of those that stand. They hold for all threads and cannot be removed. A
// kernel without a kind of wall is no error; a namespace without loopback is.
func Build(o Options) (standing []string, err error) {
	if o.Network == Own {
		if err := raiseLoopback(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoLoopback, err)
		}
		standing = append(standing, Network)
	}
	if o.Mounts == Own {
		if err := narrowView(o.Dir); err == nil {
			standing = append(standing, Mounts)
		} else if !errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("narrowing the file tree: %w", err)
		}
	}
	if o.User != 0 {
		if err := becomeUser(o.User); err != nil {
			return nil, fmt.Errorf("becoming user %d: %w", o.User, err)
		}
		standing = append(standing, User)
	}
	if err := dropPrivileges(); err == nil {
		standing = append(standing, Privileges)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("giving up privileges: %w", err)
	}
	if err := restrictFiles(o.Dir); err == nil {
		standing = append(standing, Files)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("restricting files: %w", err)
	}
	if err := restrictCalls(); err == nil {
		standing = append(standing, Calls)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("restricting system calls: %w", err)
	}
	return standing, nil
}
