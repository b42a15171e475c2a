// Package credentials makes and keeps one control plane's keys, certificates and kubeconfigs.
//
// Everything lies below one directory and belongs to one plane: the plane's own authority, ECDSA
// P-256. Between the two steps of a rotation of the authority, ca.crt and ca.key are the new one, and the
// file Files.CAEarlier has the certificates of earlier authorities, and certificates of the new authority that
// earlier ones have signed. Hosting writes these three files while the plane is stopped.
// Files are made on the first start, reused afterwards, and replaced when they near their end
// or no longer say what is asked of them (other serving hosts, for example). Each write is a temporary
// file, fsync and rename.
//
// A file that cannot be read as what it should be is an ErrDamaged, never silently replaced: clients
// trust what it held.
package credentials

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// ErrDamaged says that a file of the data directory does not hold what it should.
var ErrDamaged = errors.New("damaged")

func damaged(path string, err error) error {
	return fmt.Errorf("%s is %w: %w", path, ErrDamaged, err)
}

// Options say whom the credentials are for.
type Options struct {
	Dir       string   // kubeconfigs; the keys and certificates go to Dir/pki
	Name      string   // the plane's name: cluster, context and user of the admin kubeconfig
	Server    string   // URL that kubeconfigs name
	ServiceIP net.IP   // first address of the service network
	Hosts     []string // further names and addresses of the serving certificate
}

// Files are the paths of what Ensure made. Where one file holds a certificate and its key, it serves as both.
type Files struct {
	CA, CAKey         string // the plane's authority: certificate (public), key; they sign
	CABundle          string // whom clients, nodes and the API server trust: the authority, and earlier ones
	CAEarlier         string // of a rotation; absent otherwise
	Serving           string // API server's certificate and key
	KubeletClient     string // API server's client certificate and key towards kubelets
	FrontProxyCA      string // authority of the aggregator's identity towards extension API servers
	FrontProxyClient  string // that identity: certificate and key
	ServiceAccountKey string // signs service account tokens
	Encryption        string // upstream's EncryptionConfiguration, with the keys of the Secrets in etcd

	AdminKubeconfig string

	encryptedMark, restoredKeys string
}

// Masters is the group that authorization lets do everything, before any role exists. The controller
// manager and the scheduler are in it too: they share a process with the API server and its keys, so
// that there is no border between them that roles could guard, and so they need not wait for the
// bootstrap roles.
const Masters = "system:masters"

// unused are files of earlier versions, relative to the directory. With their keys somebody could do everything.
var unused = []string{"controller-manager.kubeconfig", "scheduler.kubeconfig", "pki/controller-manager.pem",
	"pki/scheduler.pem"}

// Ensure leaves everything that o names in its directory, made or renewed as far as needed.
func Ensure(o Options, now time.Time) (Files, error) {
	pki := filepath.Join(o.Dir, "pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		return Files{}, err
	}
	f := Files{
		CA:                filepath.Join(pki, "ca.crt"),
		CAKey:             filepath.Join(pki, "ca.key"),
		CABundle:          filepath.Join(pki, "ca-bundle.crt"),
		CAEarlier:         filepath.Join(pki, "ca-earlier.crt"),
		Serving:           filepath.Join(pki, "serving.pem"),
		KubeletClient:     filepath.Join(pki, "kubelet-client.pem"),
		FrontProxyCA:      filepath.Join(pki, "front-proxy-ca.crt"),
		FrontProxyClient:  filepath.Join(pki, "front-proxy-client.pem"),
		ServiceAccountKey: filepath.Join(pki, "service-account.key"),
		AdminKubeconfig:   filepath.Join(o.Dir, "admin.kubeconfig"),
	}
	f.Encryption, f.encryptedMark, f.restoredKeys = encryptionFiles(o.Dir)
	if err := ensureEncryption(f); err != nil {
		return Files{}, err
	}
	ca, err := loadAuthority(f.CA, f.CAKey, "atoll-"+o.Name, now)
	if err != nil {
		return Files{}, err
	}
	earlier, err := ca.readEarlier(f.CAEarlier)
	if err != nil {
		return Files{}, err
	}
	bundle := slices.Concat(ca.pem, earlier)
	if err := replaceFile(f.CABundle, bundle, 0o644); err != nil {
		return Files{}, err
	}
	frontProxyCA, err := loadAuthority(f.FrontProxyCA, filepath.Join(pki, "front-proxy-ca.key"), "atoll-"+o.Name+"-front-proxy", now)
	if err != nil {
		return Files{}, err
	}
	if _, err := readKey(f.ServiceAccountKey); errors.Is(err, fs.ErrNotExist) {
		if _, err := createKey(f.ServiceAccountKey); err != nil {
			return Files{}, err
		}
	} else if err != nil {
		return Files{}, err
	}
	for _, l := range []struct {
		path string
		ca   *authority
		leaf leaf
	}{
		{f.Serving, ca, leaf{name: "kube-apiserver", server: true, hosts: servingHosts(o)}},
		{f.KubeletClient, ca, leaf{name: "kube-apiserver-kubelet-client", groups: []string{Masters}}},
		{f.FrontProxyClient, frontProxyCA, leaf{name: "front-proxy-client"}},
	} {
		if _, err := l.leaf.ensure(l.path, l.ca, now); err != nil {
			return Files{}, err
		}
	}
	pair, err := leaf{name: "admin", groups: []string{Masters}}.ensure(filepath.Join(pki, "admin.pem"), ca, now)
	if err != nil {
		return Files{}, err
	}
	if err := writeKubeconfig(f.AdminKubeconfig, o, bundle, pair); err != nil {
		return Files{}, err
	}
	for _, name := range unused {
		if err := os.Remove(filepath.Join(o.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Files{}, err
		}
	}
	return f, nil
}

// servingHosts returns the subject alternative names of the API server, each once.
func servingHosts(o Options) []string {
	hosts := []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"127.0.0.1", "::1", o.ServiceIP.String(),
	}
	for _, host := range o.Hosts {
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
