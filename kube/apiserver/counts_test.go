package apiserver

import (
	"context"
	"errors"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/storage"
)

// revisionStorage is at revision 42 and keeps the function that lists keys.
type revisionStorage struct {
	storage.Interface
	keys storage.KeysFunc
}

func (s *revisionStorage) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	s.keys = keys
	return nil
}

func (s *revisionStorage) GetCurrentResourceVersion(context.Context) (uint64, error) { return 42, nil }

func TestACountWaitsForTheFirstListOnly(t *testing.T) {
	raw := &revisionStorage{}
	counted := &countedStorage{Interface: raw}
	empty := errors.New("the cache has had no list")
	var needed []uint64
	err := counted.EnableResourceSizeEstimation(func(ctx context.Context) ([]string, error) {
		revision, err := counted.GetCurrentResourceVersion(ctx)
		needed = append(needed, revision)
		if len(needed) == 1 && err == nil {
			err = empty
		}
		return []string{"/pods/a"}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{empty, nil, nil, nil} {
		if keys, err := raw.keys(t.Context()); !errors.Is(err, want) || !slices.Equal(keys, []string{"/pods/a"}) {
			t.Errorf("count %d: %v, %v, want %v", i, keys, err, want)
		}
	}
	if want := []uint64{1, 1, 0, 0}; !slices.Equal(needed, want) {
		t.Errorf("the counts needed the revisions %v, want %v", needed, want)
	}
	if revision, err := counted.GetCurrentResourceVersion(t.Context()); revision != 42 || err != nil {
		t.Errorf("a consistent read needs revision %d, %v, want 42", revision, err)
	}
}
