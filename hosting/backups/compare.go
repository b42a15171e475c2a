package backups

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

const (
	changedKinds = 40 // bounds the kinds in a list of changes
	changedNames = 10 // bounds the names of one kind

	comparePrefix = "compare-" // prefix of the names of directories in the spool
)

// compare computes the changes that a restore would make, for a dry run.
func (b *Backups) compare(ctx context.Context, id controlplane.ID, o controlplane.RestoreOrder) (
	controlplane.Preparation, error) {
	dir, err := os.MkdirTemp(b.o.Spool, comparePrefix+"*")
	if err != nil {
		return controlplane.Preparation{}, err
	}
	defer os.RemoveAll(dir)
	got, err := b.fetch(ctx, o, dir)
	if err != nil {
		return controlplane.Preparation{}, err
	}
	restored, err := backup.ReadContents(got.Snapshot, got.Log)
	if err != nil {
		return controlplane.Preparation{}, err
	}
	conn, err := b.o.Dial(id, nil)
	if err != nil {
		return controlplane.Preparation{}, err
	}
	defer conn.Close()
	live, err := backup.ReadLiveContents(ctx, conn)
	if err != nil {
		return controlplane.Preparation{}, err
	}
	changes := changesBetween(live, restored)
	return controlplane.Preparation{State: controlplane.PreparationDone, Restores: got.Sample.Time, Changes: &changes}, nil
}

// changesBetween returns the changes of a restore that replaces live by restored.
func changesBetween(live, restored backup.Contents) controlplane.Changes {
	var all controlplane.Changes
	kinds := map[string]*controlplane.KindChanges{}
	note := func(key string, count func(*controlplane.KindChanges), total *int) {
		kind, name, ok := parseKey(key)
		if !ok {
			return
		}
		k := kinds[kind]
		if k == nil {
			k = &controlplane.KindChanges{Kind: kind}
			kinds[kind] = k
		}
		count(k)
		*total++
		k.Names = append(k.Names, name)
	}
	for key, revision := range restored {
		now, isThere := live[key]
		switch {
		case !isThere:
			note(key, func(k *controlplane.KindChanges) { k.Created++ }, &all.Created)
		case now != revision:
			note(key, func(k *controlplane.KindChanges) { k.Updated++ }, &all.Updated)
		}
	}
	for key := range live {
		if _, isThere := restored[key]; !isThere {
			note(key, func(k *controlplane.KindChanges) { k.Deleted++ }, &all.Deleted)
		}
	}
	for _, k := range kinds {
		slices.Sort(k.Names)
		k.Names = k.Names[:min(len(k.Names), changedNames)]
		all.Kinds = append(all.Kinds, *k)
	}
	slices.SortFunc(all.Kinds, func(x, y controlplane.KindChanges) int {
		return cmp.Or(cmp.Compare(y.Created+y.Updated+y.Deleted, x.Created+x.Updated+x.Deleted),
			strings.Compare(x.Kind, y.Kind))
	})
	if left := len(all.Kinds) - changedKinds; left > 0 {
		all.Kinds, all.Left = all.Kinds[:changedKinds], left
	}
	return all
}

// selfChanging are the kinds that a plane changes by itself all the time. A list of changes leaves them out.
var selfChanging = []string{"events", "leases", "masterleases", "peerserverleases", "ranges"}

// parseKey returns kind and name of the object that a key of the API server's store belongs to: /registry/KIND/NAME,
// /registry/KIND/NAMESPACE/NAME, and the same with the group of a custom resource before the kind.
func parseKey(key string) (kind, name string, ok bool) {
	rest, ok := strings.CutPrefix(key, "/registry/")
	f := strings.Split(rest, "/")
	if !ok || len(f) < 2 || slices.Contains(selfChanging, f[0]) {
		return "", "", false
	}
	kind, f = f[0], f[1:]
	if strings.Contains(kind, ".") && len(f) > 1 {
		kind, f = f[0]+"."+kind, f[1:]
	}
	switch {
	case kind == "minions":
		kind = "nodes"
	case kind == "services" && len(f) > 1 && f[0] == "specs":
		f = f[1:]
	case kind == "services" && len(f) > 1 && f[0] == "endpoints":
		kind, f = "endpoints", f[1:]
	}
	return kind, strings.Join(f, "/"), true
}
