package hosting

import (
	"context"

	"atoll.dev/hosting/controlplane"
)

// Runtime runs control planes. Hosting orders, and never waits for a plane: each
// method returns at once, and what becomes of an order is seen by Observe.
//
// Ensure, Sleep and Discard of one plane are called by one goroutine at a time,
// those of different planes at once; Observe may be called by any goroutine. All
// may be called any number of times with the same result. Package runtimetest
// is the test suite of implementations.
type Runtime interface {
	// Ensure has the plane run as spec requires, until Sleep or Discard: it is started,
	// adopted when it runs already, started again after a failure, and replaced,
	// with its data, when the spec changes.
	//
	//  1. nil: the order is accepted. From now on Observe shows Ready only of a
	//     plane that no earlier Sleep will stop.
	//  2. A *controlplane.Failure: the order is refused, and the plane goes on as
	//     it was. Only a plane that runs refuses, and only a spec that could not
	//     replace it.
	//  3. Another error: the runtime's own record of the plane cannot be read.
	Ensure(id controlplane.ID, spec controlplane.Spec) error
	// Observe returns the last observation of the plane. For an unknown plane it
	// returns the zero value, with State Down. It returns an error if it cannot read
	// the plane's record.
	Observe(id controlplane.ID) (controlplane.Observation, error)
	// Sleep stops the plane and keeps its data.
	Sleep(id controlplane.ID) error
	// Discard ends the plane and deletes everything of it. It returns false while
	// the plane ends, and is called again after the next change; true means that
	// nothing is left, also of an unknown plane. After the first call Ensure is
	// not called until Discard has returned true.
	Discard(id controlplane.ID) (done bool, err error)
}

// Access is the way into control planes.
type Access interface {
	// Client returns the administrator's way into a plane that serves, and
	// controlplane.ErrNotServing of any other.
	Client(id controlplane.ID) (controlplane.Admin, error)
	// Sign signs a client certificate with the plane's authority. The plane must
	// have been ready once; it need not run.
	Sign(id controlplane.ID, request controlplane.CertificateRequest) (controlplane.Certificate, error)
	// EncryptedBy returns the ID of the rotation whose key encrypts all Secrets of a plane; "" while none does.
	EncryptedBy(id controlplane.ID) (rotation string, err error)
}

// Inventory is the part of a runtime that Run uses once.
type Inventory interface {
	// Open begins the runtime's work and calls changed after each change of an
	// observation, from any goroutine; changed does not block. The work ends with
	// ctx, and planes run on without it; close waits for its end. Only one runtime
	// at a time can be open on the same planes; the error is of a second.
	Open(ctx context.Context, changed func(controlplane.ID)) (close func(), err error)
	// List returns all planes of which the runtime has something.
	List() []controlplane.ID
}

// Planes is a whole runtime, as package process has it.
type Planes interface {
	Runtime
	Access
	Inventory
}
