package rpcauth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"atoll.dev/internal/certfile"
)

// KubeOptions name the Kubernetes API server that reviews tokens and rights. The
// defaults are those of a pod.
type KubeOptions struct {
	Server    string // URL; default the pod's cluster
	CAFile    string // default the service account's
	TokenFile string // of the server's service account, which needs the role system:auth-delegator

	Client *http.Client // in place of CAFile; for tests and proxies
}

const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount/"

// reviewer calls TokenReview and SubjectAccessReview. These are two small requests, so
// it uses no client library, and the region needs no kubeconfig.
type reviewer struct {
	server, tokenFile string
	client            *http.Client

	Mu      sync.Mutex
	Answers map[[sha256.Size]byte]reviewed
}

type reviewed struct {
	user    tokenUser
	allowed bool
	until   time.Time
}

// tokenUser is the user of a token, in the form of TokenReview and SubjectAccessReview.
// The zero value is no user.
type tokenUser struct {
	Username string              `json:"username"`
	UID      string              `json:"uid"`
	Groups   []string            `json:"groups"`
	Extra    map[string][]string `json:"extra"`
}

const (
	reviewFor     = 10 * time.Second // how long an answer is used again
	reviewDenied  = 2 * time.Second  // how long a denial is used again
	reviewTimeout = 5 * time.Second
	maxReviews    = 4096 // answers in memory
	maxToken      = 16 << 10
	maxAnswer     = 1 << 20
)

func newReviewer(o KubeOptions) (*reviewer, error) {
	if o.Server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil,
				errors.New("tokens are reviewed by a Kubernetes API server, and none is named: this is not a pod")
		}
		o.Server = "https://" + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(o.Server)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the Kubernetes API server %q is not https://host:port", o.Server)
	}
	if o.TokenFile == "" {
		o.TokenFile = serviceAccountDir + "token"
	}
	r := &reviewer{server: strings.TrimRight(o.Server, "/"), tokenFile: o.TokenFile, client: o.Client,
		Answers: map[[sha256.Size]byte]reviewed{}}
	if r.client != nil {
		return r, nil
	}
	if o.CAFile == "" {
		o.CAFile = serviceAccountDir + "ca.crt"
	}
	roots, err := certfile.ReadPool(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("the CA of the Kubernetes API server: %w", err)
	}
	r.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12,
		RootCAs: roots}, ForceAttemptHTTP2: true}}
	return r, nil
}

// user returns the user of a token; ok is false when the token is not valid. The error means
// that the review failed.
func (r *reviewer) user(ctx context.Context, token string) (u tokenUser, ok bool, err error) {
	if token == "" || len(token) > maxToken {
		return u, false, nil
	}
	answer, err := r.cached("token\x00"+token, func() (reviewed, error) {
		var out struct {
			Status struct {
				Authenticated bool      `json:"authenticated"`
				User          tokenUser `json:"user"`
			} `json:"status"`
		}
		err := r.post(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", map[string]any{
			"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": map[string]any{"token": token},
		}, &out)
		return reviewed{user: out.Status.User, allowed: out.Status.Authenticated && out.Status.User.Username != ""}, err
	})
	return answer.user, answer.allowed, err
}

// allowed reports whether Kubernetes permits a user the verb on the path /<scope>/<name>.
func (r *reviewer) allowed(ctx context.Context, u tokenUser, verb Verb, scope Scope, name string) (bool, error) {
	spec := map[string]any{
		"user": u.Username, "uid": u.UID, "groups": u.Groups, "extra": u.Extra,
		"nonResourceAttributes": map[string]any{"path": "/" + string(scope) + "/" + name, "verb": string(verb)},
	}
	key, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	answer, err := r.cached("access\x00"+string(key), func() (reviewed, error) {
		var out struct {
			Status struct {
				Allowed bool `json:"allowed"`
				Denied  bool `json:"denied"`
			} `json:"status"`
		}
		err := r.post(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
		}, &out)
		return reviewed{allowed: out.Status.Allowed && !out.Status.Denied}, err
	})
	return answer.allowed, err
}

// cached returns the answer to an earlier equal question, or calls ask and keeps its answer
// for a short while. It keeps the hash of a question, so that no token stays in memory.
func (r *reviewer) cached(question string, ask func() (reviewed, error)) (reviewed, error) {
	key, now := sha256.Sum256([]byte(question)), time.Now()
	r.Mu.Lock()
	answer, ok := r.Answers[key]
	r.Mu.Unlock()
	if ok && now.Before(answer.until) {
		return answer, nil
	}
	answer, err := ask()
	if err != nil {
		return reviewed{}, err
	}
	answer.until = now.Add(reviewDenied)
	if answer.allowed {
		answer.until = now.Add(reviewFor)
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if len(r.Answers) >= maxReviews {
		clear(r.Answers)
	}
	r.Answers[key] = answer
	return answer, nil
}

func (r *reviewer) post(ctx context.Context, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	// Kubernetes renews the token in its file, so each request reads it again.
	token, err := os.ReadFile(r.tokenFile)
	if err != nil {
		return fmt.Errorf("the token for the Kubernetes API server: %w", err)
	}
	if t := strings.TrimSpace(string(token)); t != "" {
		req.Header.Set("Authorization", "Bearer "+t)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("asking the Kubernetes API server: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("asking the Kubernetes API server: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		// The body may repeat the request and its token, so the error leaves it out.
		return fmt.Errorf("the Kubernetes API server refuses to review: POST %s: %s", path, resp.Status)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("reading a review: %w", err)
	}
	return nil
}
