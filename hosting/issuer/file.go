package issuer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/cluster"
	"atoll.dev/internal/atomicfile"
)

// fileName is the name of the file in a plane's directory; package issuers of atoll-kube reads it.
const fileName = "authentication.json"

// file is the content of the file.
type file struct {
	Issuers []trusted `json:"issuers"`
}

// trusted is an issuer in the file.
type trusted struct {
	URL            string          `json:"url"`
	Audiences      []string        `json:"audiences"`
	Username       mapping         `json:"username"`
	Groups         mapping         `json:"groups,omitzero"`
	RequiredClaims []required      `json:"requiredClaims,omitempty"`
	Keys           json.RawMessage `json:"keys,omitempty"`
	// ReadAt is when Keys were last read. It may be a quarter of keysTrusted too early, so that the file need not change
	// each minute. Authority is the certificates that verified the issuer's server. The plane ignores both.
	ReadAt    time.Time `json:"readAt,omitzero"`
	Authority string    `json:"authority,omitempty"`
}

// mapping makes a name of a claim.
type mapping struct {
	Claim  string `json:"claim,omitempty"`
	Prefix string `json:"prefix,omitempty"`
}

// required is a claim that tokens have, with this value.
type required struct {
	Claim string `json:"claim"`
	Value string `json:"value"`
}

// maxFile bounds the file that a plane may make hosting read.
const maxFile = 8 << 20

// readFile returns the content of a plane's file: nil when there is no file; empty and not nil when there is something
// that cannot be used, such as a link, a pipe or a huge file, which the caller replaces or removes.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return []byte{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return []byte{}, err
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// writeFile replaces a plane's file. The file belongs to the owner of the directory: the user of the plane, or root
// before the first start. A start at the same time gives the directory, and then the files in it, to the plane; a file
// that comes after its list of files gets the owner here.
func writeFile(path string, content []byte) error {
	f, err := atomicfile.New(path, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = shareOwner(f.File, filepath.Dir(path))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), f.Abort())
	}
	if err := f.Replace(); err != nil {
		return err
	}
	return errors.Join(shareOwner(f.File, filepath.Dir(path)), f.Close())
}

// hasOwner reports whether a file belongs to the owner of a directory.
func hasOwner(path, dir string) bool {
	var file, of unix.Stat_t
	err := errors.Join(unix.Lstat(path, &file), unix.Lstat(dir, &of))
	return err == nil && file.Uid == of.Uid && file.Gid == of.Gid
}

// shareOwner gives a file to the owner of a directory.
func shareOwner(f *os.File, dir string) error {
	var file, of unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &file), unix.Lstat(dir, &of)); err != nil {
		return fmt.Errorf("the owner of %s: %w", dir, err)
	}
	if file.Uid == of.Uid && file.Gid == of.Gid {
		return nil
	}
	return f.Chown(int(of.Uid), int(of.Gid))
}

// compose returns the file of a plane, and the problems for its customer. have is its present file, whose keys are
// used while none was read since hosting began.
func (k *Keeper) compose(issuers []cluster.Issuer, have file, now time.Time) (want file, problems []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, i := range issuers {
		t := trusted{
			URL: i.URL, Audiences: i.Audiences,
			Username:  mapping{i.ClaimMappings.Username.Claim, i.ClaimMappings.Username.Prefix},
			Groups:    mapping{i.ClaimMappings.Groups.Claim, i.ClaimMappings.Groups.Prefix},
			Authority: i.CertificateAuthority,
		}
		for _, r := range i.ClaimValidationRules {
			t.RequiredClaims = append(t.RequiredClaims, required{r.Claim, r.RequiredValue})
		}
		of := k.sources[sourceOf(i)]
		keySet, readAt := of.set, of.readAt
		before := find(have, i)
		if keySet == nil {
			keySet, readAt = before.Keys, before.ReadAt
		}
		isOld := of.err != nil && now.Sub(readAt) > keysTrusted
		if keySet != nil && !isOld {
			t.Keys, t.ReadAt = keySet, before.ReadAt
			if string(keySet) != string(before.Keys) || of.err == nil && now.Sub(before.ReadAt) > keysTrusted/4 {
				t.ReadAt = readAt.UTC().Truncate(time.Second)
			}
		}
		if of.err != nil {
			problems = append(problems, problem(i.URL, of.err, t.Keys))
		}
		want.Issuers = append(want.Issuers, t)
	}
	return want, problems
}

// find returns the entry of an issuer in a file; the zero value if there is none.
func find(f file, i cluster.Issuer) trusted {
	for _, t := range f.Issuers {
		if t.URL == i.URL && t.Authority == i.CertificateAuthority {
			return t
		}
	}
	return trusted{}
}

// problem returns the sentence for a customer about an issuer whose last read failed; keys are those in use.
func problem(url string, err error, keys json.RawMessage) string {
	outcome := "its tokens are refused"
	if keys != nil {
		outcome = "its last keys are used until an hour after they were read"
	}
	return fmt.Sprintf("the keys of the issuer %s cannot be read, and %s: %v", url, outcome, err)
}
