package customer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	region "atoll.dev/cluster"
	"atoll.dev/node"
)

// tokenCredential is how long the credential lives with which a token is made.
const tokenCredential = 5 * time.Minute

// joinToken is what `atoll nodepool join-token -o json` prints.
type joinToken struct {
	Node      string    `json:"node"` // name of the Node of the machine that uses it
	NodePool  string    `json:"node_pool"`
	Cluster   string    `json:"cluster"`
	Endpoint  string    `json:"endpoint"` // HOST:PORT that the machine dials
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

func poolJoinToken(session *terminal.Session) *cobra.Command {
	expiration := time.Hour
	cmd := &cobra.Command{
		Use: "join-token NAME --cluster CLUSTER", Short: "Make a token with which one machine joins a node pool",
		Args: cobra.ExactArgs(1),
		Long: `Makes a token with which one machine of yours joins a node pool with the provider
external, and prints the command to run on that machine. The token is for one
machine and this pool, and expires. It is made in the cluster itself, with a
credential of five minutes: it does not travel through the region.`,
		Example: `  atoll nodepool create edge --cluster demo --provider external --replicas 3
  atoll nodepool join-token edge --cluster demo`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
			cobra.ShellCompDirective) {
			return completePools(session, cmd, args, word)
		},
	}
	cluster := addClusterFlag(session, cmd)
	cmd.Flags().DurationVar(&expiration, "expiration", expiration, "how long a machine may use it, from 1m to 24h")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if expiration < time.Minute || expiration > 24*time.Hour {
			return fmt.Errorf("--expiration %s: from 1m to 24h are possible", expiration)
		}
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			made, err := makeJoinToken(ctx, api, client.ClusterID(*cluster), args[0], expiration)
			if err != nil {
				return err
			}
			return out.Print(session.Out, made, func(w io.Writer) {
				fmt.Fprintf(session.Err, "for one machine, until %s; it becomes node %s. Run there, as root:\n",
					made.ExpiresAt.Local().Format("2006-01-02 15:04:05 MST"), made.Node)
				fmt.Fprintf(w, "echo %s | atoll node join --token-file -\n", made.Token)
			})
		})
	}
	return cmd
}

// makeJoinToken makes a token of a node pool with the provider external.
func makeJoinToken(ctx context.Context, api *client.Client, cluster client.ClusterID, name string,
	life time.Duration) (joinToken, error) {
	pool, err := findPool(ctx, api, cluster, name)
	if err != nil {
		return joinToken{}, err
	}
	if p := pool.Spec.Provider; p != string(region.External) {
		return joinToken{}, fmt.Errorf("node pool %s has the provider %s: machines join node pools that were created with "+
			"--provider external", pool.Name, cmp.Or(p, string(region.Simulated)))
	}
	owner, err := findCluster(ctx, api, pool.ClusterID)
	if err != nil {
		return joinToken{}, err
	}
	kubeconfig, cred, err := makeKubeconfig(ctx, api, client.ClusterID(owner.ID), owner.Name,
		platform.CredentialRequest{ExpirationSeconds: int(tokenCredential.Seconds()),
			Role: platform.CredentialRequestRoleAdmin})
	if err != nil {
		return joinToken{}, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return joinToken{}, fmt.Errorf("reading the region's kubeconfig: %w", err)
	}
	made, err := newJoinToken(ctx, config, pool.Name, time.Now().Add(life))
	if err != nil {
		return joinToken{}, err
	}
	made.Cluster = owner.Name
	// The credential was for this call. It expires also when this request fails.
	_ = api.RevokeCredential(ctx, client.ClusterID(owner.ID), client.CredentialID(cred.ID))
	return made, nil
}

// newJoinToken makes a token of a pool in a cluster, with the rights of a kubeconfig.
func newJoinToken(ctx context.Context, config *rest.Config, pool string, expires time.Time) (joinToken, error) {
	at, err := url.Parse(config.Host)
	if err != nil {
		return joinToken{}, fmt.Errorf("the address of the cluster: %w", err)
	}
	plane, err := dynamic.NewForConfig(config)
	if err != nil {
		return joinToken{}, err
	}
	i := node.Invitation{Address: at.Host, ServerName: config.ServerName,
		CA: string(bytes.TrimSpace(config.CAData)) + "\n", Pool: pool, Token: randomToken()}
	if i.ServerName == "" {
		i.ServerName = at.Hostname()
	}
	id, secret := i.TokenID(), i.Token[len(i.TokenID())+1:]
	_, err = plane.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace("kube-system").
		Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
			"metadata": map[string]any{"name": "bootstrap-token-" + id},
			"stringData": map[string]any{
				"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
				"expiration":        expires.UTC().Format(time.RFC3339),
				"auth-extra-groups": node.JoinGroup(pool),
				"description":       "lets one machine join node pool " + pool + " as " + i.Node(),
			},
		}}, metav1.CreateOptions{})
	if err != nil {
		return joinToken{}, fmt.Errorf("making the token in the cluster: %w", err)
	}
	text, err := i.Encode()
	return joinToken{Node: i.Node(), NodePool: pool, Endpoint: i.Address, Token: text, ExpiresAt: expires}, err
}

// randomToken returns a bootstrap token. Its id is a part of a name of a Node, so it begins with a letter.
func randomToken() string {
	const letters, all = "abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz0123456789"
	random := make([]byte, 22)
	_, _ = rand.Read(random) // it never fails
	text := make([]byte, 0, len(random)+1)
	for i, b := range random {
		switch from := all; {
		case i == 0:
			text = append(text, letters[int(b)%len(letters)])
		case i == 6:
			text = append(text, '.')
			fallthrough
		default:
			text = append(text, from[int(b)%len(from)])
		}
	}
	return string(text)
}
