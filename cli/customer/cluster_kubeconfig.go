package customer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// credentialRoles are the values of --role, the least powerful first.
var credentialRoles = []string{"view", "edit", "admin"}

func clusterKubeconfig(session *terminal.Session) *cobra.Command {
	var file, into, role string
	expiration := time.Hour
	cmd := &cobra.Command{
		Use:   "kubeconfig NAME",
		Short: "Get a kubeconfig with a new key and a certificate of the cluster",
		Long: `Makes a key on this machine, requests a certificate for it from the cluster's own CA, and
writes a kubeconfig with both: to standard output, to a new file (--out), or into an existing
kubeconfig (--kubeconfig). The key never leaves this machine. Everybody who has the file has
the rights of --role in the cluster, until the certificate expires or "atoll cluster
credentials revoke" ends it:

  view   may read everything except Secrets and access rights
  edit   may change workloads and read Secrets; an attacker can get more rights from there
  admin  may do everything`,
		Example: `  atoll cluster kubeconfig demo --out demo.kubeconfig && kubectl --kubeconfig demo.kubeconfig get nodes
  atoll cluster kubeconfig demo --kubeconfig ~/.kube/config && kubectl --context demo get nodes
  atoll cluster kubeconfig demo --role view --expiration 8h --out reader.kubeconfig`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().DurationVar(&expiration, "expiration", expiration,
		"time until it expires, from 1m to 24h, unless the region has another limit")
	cmd.Flags().StringVar(&role, "role", string(platform.CredentialRoleAdmin),
		"its rights in all namespaces: view, edit or admin")
	cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(
		credentialRoles, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&file, "out", "", "file for the kubeconfig (default: print it)")
	cmd.Flags().StringVar(&into, "kubeconfig", "",
		"existing kubeconfig: add a context of the cluster's name, or replace the earlier one, and make it the current "+
			"context")
	cmd.MarkFlagsMutuallyExclusive("out", "kubeconfig")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if expiration < time.Second { // the request has whole seconds, and 0 means the default
			return fmt.Errorf("--expiration %s: from 1m to 24h are possible", expiration)
		}
		want := platform.CredentialRequest{ExpirationSeconds: int(expiration.Seconds()),
			Role: platform.CredentialRequestRole(role)}
		if !slices.Contains(credentialRoles, role) {
			return fmt.Errorf("--role %s is not view, edit or admin", role)
		}
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			config, cred, err := makeKubeconfig(ctx, api, client.ClusterID(cluster.ID), cluster.Name, want)
			if err != nil {
				return err
			}
			return writeKubeconfig(session, config, cred, cluster.Name, file, into)
		})
	}
	return cmd
}

// writeKubeconfig adds a kubeconfig to the file into, or writes it to file, or prints it.
func writeKubeconfig(session *terminal.Session, config *clientcmdapi.Config, cred platform.Credential, name, file,
	into string) error {
	until := cred.ExpiresAt.Local().Format("2006-01-02 15:04:05 MST")
	if into != "" {
		if err := mergeKubeconfig(into, config, name); err != nil {
			return err
		}
		fmt.Fprintf(session.Err, "context %s added to %s; credential %s serves until %s\n", name, into, cred.ID, until)
		return nil
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	if file == "" || file == "-" {
		_, err := session.Out.Write(data)
		return err
	}
	if err := terminal.WritePrivate(file, data); err != nil {
		return err
	}
	fmt.Fprintf(session.Err, "%s written; credential %s serves until %s\n", file, cred.ID, until)
	return nil
}

// makeKubeconfig generates a key, requests the credential that is wanted for it, and returns a kubeconfig
// with one context, which is named after the cluster.
func makeKubeconfig(ctx context.Context, api *client.Client, id client.ClusterID, name string,
	want platform.CredentialRequest) (*clientcmdapi.Config, platform.Credential, error) {
	key, request, err := newKeyAndCSR()
	if err != nil {
		return nil, platform.Credential{}, err
	}
	want.Csr = string(request)
	cred, err := api.CreateCredential(ctx, id, want)
	if err != nil {
		return nil, cred, err
	}
	config, err := completeKubeconfig([]byte(cred.Kubeconfig), key, name)
	return config, cred, err
}

// newKeyAndCSR generates a key and a certificate request for it, both as PEM. The region uses only
// the key of the request, so the request has no subject.
func newKeyAndCSR() (key, request []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("making a request for a certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), nil
}

// completeKubeconfig puts the key into the region's kubeconfig and names its cluster, user and
// context after the cluster.
func completeKubeconfig(from, key []byte, name string) (*clientcmdapi.Config, error) {
	source, err := clientcmd.Load(from)
	if err != nil {
		return nil, fmt.Errorf("reading the region's kubeconfig: %w", err)
	}
	entry, ok := source.Contexts[source.CurrentContext]
	if !ok || source.Clusters[entry.Cluster] == nil || source.AuthInfos[entry.AuthInfo] == nil {
		return nil, errors.New("reading the region's kubeconfig: it has no context with a cluster and a user")
	}
	cluster, user := source.Clusters[entry.Cluster], source.AuthInfos[entry.AuthInfo]
	if user.ClientKeyData = key; len(user.ClientCertificateData) == 0 {
		return nil, errors.New("reading the region's kubeconfig: it has no certificate")
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[name], config.AuthInfos[name] = cluster, user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: entry.Namespace}
	config.CurrentContext = name
	return config, nil
}

// mergeKubeconfig adds the context of a cluster to a kubeconfig file and makes it the current one.
// It replaces a context of that name when a region made it, and refuses otherwise.
func mergeKubeconfig(file string, config *clientcmdapi.Config, name string) error {
	merged, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		merged, err = clientcmdapi.NewConfig(), os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if isForeign(merged, name) {
		return fmt.Errorf(
			"kubeconfig %s: its entry %s does not belong to a cluster of a region and is kept; write a new file with "+
				"--out, or rename that entry", file, name)
	}
	merged.Clusters[name], merged.AuthInfos[name], merged.Contexts[name] = config.Clusters[name],
		config.AuthInfos[name],
		config.Contexts[name]
	merged.CurrentContext = name
	data, err := clientcmd.Write(*merged)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return terminal.WritePrivate(file, data)
}

// isForeign reports whether a kubeconfig uses the name for something that no region made. Every
// cluster of a region has a TLS server name hc-ID.DOMAIN.
func isForeign(all *clientcmdapi.Config, name string) bool {
	cluster, entry, user := all.Clusters[name], all.Contexts[name], all.AuthInfos[name]
	if cluster == nil {
		return entry != nil || user != nil
	}
	return !strings.HasPrefix(cluster.TLSServerName, "hc-")
}
