// Package argocd tests what `atoll config render` writes for Argo CD with Argo CD itself: its application controller,
// its ApplicationSet controller and its repository server, as their owners released them, against a plane of ours.
//
// It is a module of its own, because these programs take half an hour to compile on two cores, and no test of the
// suite: `cd test/argocd && CGO_ENABLED=0 go test -timeout 90m -argocd .` runs it. It needs bin/atoll,
// bin/atoll-kube and bin/kubectl (`make build`), redis-server and git. helm is a further module, with the versions
// that its owners chose. Once these programs are in Go's build cache, the test takes about three minutes.
package argocd
