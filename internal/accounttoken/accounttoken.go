// Package accounttoken keeps the token of a service account valid. A kubeconfig file has a token that expires after a
// day; the process that uses the file requests the next token with the present one, and replaces the file.
//
// Bootstrapping makes the first token with Request, and writes the file. The service account needs the right to create
// serviceaccounts/token for itself, and no others. A process that was stopped for longer than Life needs a new file;
// one that runs takes the new token from it.
//
// It imports atomicfile and none of our other packages.
package accounttoken

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/internal/atomicfile"
)

// Life is how long a token is valid.
const Life = 24 * time.Hour

// Pauses between tries to renew a token.
const (
	firstPause = time.Second
	longPause  = 5 * time.Minute
)

// clockPause is how often sleep reads the clock. One timer for half a day would stop while the machine is suspended,
// and the token would expire meanwhile.
const clockPause = time.Minute

// Request requests a token of a service account that is valid for Life. Each call returns another token.
func Request(ctx context.Context, client dynamic.Interface, namespace, name string) (string, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"expirationSeconds": int64(Life / time.Second)},
	}}
	answer, err := client.Resource(resource).Namespace(namespace).Create(ctx, object, metav1.CreateOptions{}, "token")
	if err != nil {
		return "", fmt.Errorf("requesting a token of the service account %s/%s: %w", namespace, name, err)
	}
	token, _, _ := unstructured.NestedString(answer.Object, "status", "token")
	if token == "" {
		return "", fmt.Errorf("the token of the service account %s/%s is empty", namespace, name)
	}
	return token, nil
}

// claims are the claims of a token that its renewal needs.
type claims struct {
	Issued     int64 `json:"iat"` // seconds since 1970
	Expires    int64 `json:"exp"`
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// readClaims reads a token without checking its signature. ok is false for a token that is not a bound token of a
// service account, which cannot be renewed.
func readClaims(token string) (c claims, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &c) != nil {
		return c, false
	}
	return c, c.Expires > c.Issued && c.Kubernetes.ServiceAccount.Name != ""
}

// Account is a kubeconfig file whose token this process renews.
type Account struct {
	file   string
	config *api.Config
	user   string // of config
	rest   *rest.Config
	token  atomic.Pointer[string] // the present one; nil: the file has no token that can be renewed
}

// Open reads a kubeconfig file. When file is "", it uses the service account of the pod in which the process runs. A
// kubeconfig with another credential than a bound token, such as a certificate or a token file, is used as it is:
// nothing is renewed.
func Open(file string) (*Account, error) {
	if file == "" {
		config, err := rest.InClusterConfig()
		return &Account{rest: config}, err
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, err
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, err
	}
	a := &Account{file: file, config: config}
	if a.rest, err = clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig(); err != nil {
		return nil, err
	}
	if current := config.Contexts[config.CurrentContext]; current != nil {
		a.user = current.AuthInfo
	}
	if _, ok := readClaims(a.rest.BearerToken); !ok || config.AuthInfos[a.user] == nil || a.rest.BearerTokenFile != "" {
		return a, nil
	}
	token := a.rest.BearerToken
	a.token.Store(&token)
	a.rest.BearerToken = ""
	a.rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return bearer{a, next} })
	return a, nil
}

// RESTConfig returns a configuration whose clients send the present token. The caller may change it.
func (a *Account) RESTConfig() *rest.Config {
	config := rest.CopyConfig(a.rest)
	config.WarningHandler = rest.NoWarnings{} // the log would have them, and a webhook's may quote a Secret
	return config
}

// bearer adds the present token to requests.
type bearer struct {
	account *Account
	next    http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+*b.account.token.Load())
	return b.next.RoundTrip(r)
}

// Renew replaces the token whenever half of its life has passed, until ctx ends. A try that fails is repeated. The
// first renewal follows the times in the token; later ones follow this machine's own clock, so that a clock that
// differs from the API server's does not make it renew again and again. When a renewal fails, it looks for a newer
// token in the file.
func (a *Account) Renew(ctx context.Context, log *slog.Logger) error {
	wait, ok := a.untilRenewal(time.Now())
	if !ok {
		<-ctx.Done()
		return nil
	}
	for pause := firstPause; ; {
		if !sleep(ctx, wait) {
			return nil
		}
		err := a.renewNow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait, pause = a.halfLife(), firstPause
			continue
		case a.readNewer(): // a token that another bootstrap wrote
			wait, pause = firstPause, firstPause
			continue
		}
		log.Warn("the token of the service account was not renewed; see its kubeconfig", "kubeconfig", a.file,
			"error", err, "retry", pause)
		wait, pause = pause, min(2*pause, longPause)
	}
}

// sleep returns true when a time has passed, by the timer or by the machine's clock, and false when ctx has ended.
func sleep(ctx context.Context, wait time.Duration) bool {
	begun := time.Now()
	for {
		now := time.Now()
		left := wait - max(now.Sub(begun), now.Round(0).Sub(begun.Round(0))) // Round removes the timer's reading
		if left <= 0 {
			return ctx.Err() == nil
		}
		select {
		case <-time.After(min(left, clockPause)):
		case <-ctx.Done():
			return false
		}
	}
}

// readNewer takes the token of the file when that is valid for longer than the present one.
func (a *Account) readNewer() (isNewer bool) {
	config, err := clientcmd.LoadFromFile(a.file)
	if err != nil || config.AuthInfos[a.user] == nil {
		return false
	}
	token := config.AuthInfos[a.user].Token
	read, ok := readClaims(token)
	present, _ := readClaims(*a.token.Load())
	if !ok || read.Expires <= present.Expires {
		return false
	}
	a.token.Store(&token)
	a.config = config
	return true
}

// untilRenewal returns how long it takes until half of the present token's life has passed; a negative time when it
// has. ok is false when the token cannot be renewed.
func (a *Account) untilRenewal(now time.Time) (wait time.Duration, ok bool) {
	token := a.token.Load()
	if token == nil {
		return 0, false
	}
	c, ok := readClaims(*token)
	return time.Unix(c.Issued, 0).Add(a.halfLife()).Sub(now), ok
}

// halfLife returns half of the present token's life, a minute at least.
func (a *Account) halfLife() time.Duration {
	c, _ := readClaims(*a.token.Load())
	return max(time.Duration(c.Expires-c.Issued)*time.Second/2, time.Minute)
}

// renewNow requests the next token, uses it from now on, and replaces the file. A file that cannot be replaced is an
// error, and the token is used all the same.
func (a *Account) renewNow(ctx context.Context) error {
	c, ok := readClaims(*a.token.Load())
	if !ok {
		return errors.New("the kubeconfig has no token that can be renewed")
	}
	client, err := dynamic.NewForConfig(a.rest)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	token, err := Request(ctx, client, c.Kubernetes.Namespace, c.Kubernetes.ServiceAccount.Name)
	if err != nil {
		return err
	}
	a.token.Store(&token)
	a.config.AuthInfos[a.user].Token = token
	data, err := clientcmd.Write(*a.config)
	if err != nil {
		return err
	}
	return atomicfile.Write(a.file, data, 0o600)
}
