package work

import (
	"github.com/google/uuid"
)

// Consumer is the name of a consumer: a management cluster's name in Maestro, in topics,
// certificates and bundles.
type Consumer string

// ID identifies a bundle: the id that its source computed for it, and the name of the ManifestWork in its consumer.
type ID string

// BundleID returns the id of the work of this name that a source posts to a consumer. OCM's source clients compute the
// same id.
func BundleID(source string, consumer Consumer, name string) ID {
	return ID(uuid.NewSHA1(uuid.NameSpaceOID,
		[]byte(source+"-manifestworks.work.open-cluster-management.io-"+string(consumer)+"-"+name)).String())
}

// SourcePlatform is the source name of the works that the Platform API posts.
const SourcePlatform = "rosa-regional-platform-api"
