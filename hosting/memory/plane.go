package memory

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// goal is the last order to a plane.
type goal int

const (
	undecided goal = iota // no order since the machine was made
	run
	sleep
	discard
)

// plane is one control plane. Machine.mu guards it.
type plane struct {
	goal      goal
	isStopped bool                  // the worker has carried out the order to discard the plane
	spec      controlplane.Spec     // of the last Ensure
	runs      controlplane.Spec     // of the server
	fault     *controlplane.Failure // of every start
	seen      controlplane.Observation
	authority *authority // nil before the first start
	objects   sync.Map   // ConfigMaps, by path
	server    *httptest.Server
}

// start makes the server. The address stays the same over restarts, if it can.
func (p *plane) start() error {
	var err error
	if p.authority == nil {
		if p.authority, err = newAuthority(); err != nil {
			return err
		}
	}
	if p.seen.LastStart.ServiceCIDR == "" {
		p.seen.LastStart.ServiceCIDR = p.spec.ServiceCIDR
	}
	p.seen.LastStart.Release, p.seen.LastStart.ServerNames = p.spec.Release, p.spec.ServerNames
	p.seen.LastStart.EmulatedVersion, p.seen.LastStart.Copy = p.spec.EmulatedVersion, p.spec.Copy
	p.seen.LastStart.Rotations = p.spec.Rotations
	if last := &p.seen.LastStart; p.spec.Data != last.Data {
		last.PastData, last.Data = slices.Insert(slices.Clone(last.PastData), 0, last.Data), p.spec.Data
	}
	serving, err := p.authority.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: p.spec.ServerNames,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &p.authority.key.PublicKey)
	if err != nil {
		return err
	}
	const anyPort = "127.0.0.1:0"
	l, err := net.Listen("tcp", cmp.Or(p.seen.Backend, anyPort))
	if err != nil {
		if l, err = net.Listen("tcp", anyPort); err != nil {
			return err
		}
	}
	clients := x509.NewCertPool()
	clients.AddCert(p.authority.cert)
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	p.server.Listener.Close()
	p.server.Listener = l
	p.server.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{serving}, PrivateKey: p.authority.key}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: clients,
	}
	p.server.StartTLS()
	p.runs, p.seen.Backend = p.spec, l.Addr().String()
	return nil
}

// applySize makes the size that of an order. The use is that of the ordered nodes only.
func (p *plane) applySize(spec controlplane.Spec, now time.Time) {
	s := &p.seen.Size
	s.Wanted = cluster.SizeNeed{Wanted: s.Wanted}.Next(cluster.SizeUse{Nodes: spec.Nodes}, now).Wanted
	if s.Size = cluster.EffectiveSize(s.Size, spec.Size, s.Wanted); s.Size != "" {
		l := s.Size.Limits()
		s.Limits = controlplane.Limits{Memory: l.Memory, Processes: l.Processes, CPUWeight: l.CPUWeight}
	}
}

func (p *plane) stop() {
	if p.server != nil {
		p.server.CloseClientConnections()
		p.server.Close()
		p.server = nil
	}
}

// serve answers the part of Kubernetes' API that the suite uses: create and get
// of ConfigMaps.
func (p *plane) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.Method {
	case http.MethodPost:
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		var object struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err != nil || json.Unmarshal(body, &object) != nil || object.Metadata.Name == "" {
			http.Error(w, "no object", http.StatusBadRequest)
			return
		}
		p.objects.Store(r.URL.Path+"/"+object.Metadata.Name, body)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	default:
		if body, ok := p.objects.Load(r.URL.Path); ok {
			_, _ = w.Write(body.([]byte))
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}

// admin is the administrator's way in.
func (p *plane) admin() (controlplane.Admin, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return controlplane.Admin{}, err
	}
	certificate, err := p.authority.signClient(controlplane.CertificateRequest{
		PublicKey: &key.PublicKey, CommonName: "admin", Organization: "system:masters", Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		return controlplane.Admin{}, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return controlplane.Admin{}, err
	}
	name := p.runs.Name
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{
		Server: "https://" + p.seen.Backend, CertificateAuthorityData: p.authority.pem,
	}
	config.AuthInfos[name] = &api.AuthInfo{
		ClientCertificateData: certificate,
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	kubeconfig, err := clientcmd.Write(*config)
	admin := controlplane.Admin{Kubeconfig: kubeconfig, Version: p.runs.Release}
	if len(p.runs.ServerNames) > 0 {
		admin.ServerName = p.runs.ServerNames[0]
	}
	return admin, err
}

// authority is a plane's certificate authority.
type authority struct {
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "memory"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert: cert, key: key}, nil
}

func (a *authority) sign(template *x509.Certificate, key any) ([]byte, error) {
	var err error
	template.NotBefore = time.Now().Add(-time.Minute)
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, err
	}
	return x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
}

func (a *authority) signClient(r controlplane.CertificateRequest) ([]byte, error) {
	der, err := a.sign(&x509.Certificate{
		Subject:  pkix.Name{CommonName: r.CommonName, Organization: []string{r.Organization}},
		NotAfter: r.Expires, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, r.PublicKey)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}
