package work

import (
	"github.com/google/uuid"
)

// BundleID returns the id of the work of this name that a source posts to a consumer. OCM's source clients compute the
// same id.
func BundleID(source, consumer, name string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID,
		[]byte(source+"-manifestworks.work.open-cluster-management.io-"+consumer+"-"+name)).String()
}

// SourcePlatform is the source name of the works that the Platform API posts.
const SourcePlatform = "rosa-regional-platform-api"
