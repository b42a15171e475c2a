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
)

// ErrNoLoopback says that the loopback interface of the network namespace cannot be used.
var ErrNoLoopback = errors.New("the loopback interface is down and cannot be brought up")

// Options say which walls are built.
type Options struct {
	Dir     string // the only directory that stays open for reading and writing
	Network Namespace
}

// Namespace says in whose network namespace the process is.
type Namespace int

// Network namespaces.
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
	return standing, nil
}
