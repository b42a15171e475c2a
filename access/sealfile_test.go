package access

import (
	"io/fs"
	"testing"
)

func TestOnlyPrivateKeyFilesAreRead(t *testing.T) {
	const root, service = 0, 65532
	for _, c := range []struct {
		perm        fs.FileMode
		owner, user int
		want        bool
	}{
		{0o600, service, service, true},
		{0o400, root, root, true},
		{0o440, root, service, true}, // a Secret that Kubernetes mounts with fsGroup
		{0o440, service, service, false},
		{0o440, root, root, false},
		{0o444, root, service, false},
		{0o460, root, service, false},
		{0o640, 1000, service, false},
	} {
		if have := isPrivate(c.perm, c.owner, c.user); have != c.want {
			t.Errorf("mode %o of user %d, read by user %d: %v", c.perm, c.owner, c.user, have)
		}
	}
}
