package customer

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"atoll.dev/cli/terminal"
)

// signInLimit is how long a person has for signing in with a browser on this machine.
const signInLimit = 10 * time.Minute

// signInByDevice shows a code, and waits until the person has entered it in a browser anywhere (RFC 8628).
func signInByDevice(ctx context.Context, session *terminal.Session, login *terminal.Login,
	provider *terminal.Provider) error {
	if provider.Config.Endpoint.DeviceAuthURL == "" {
		return fmt.Errorf("%s does not support sign-in by device; leave --device out", login.Issuer)
	}
	device, err := provider.Config.DeviceAuth(ctx)
	if err != nil {
		return fmt.Errorf("beginning to sign in: %w", err)
	}
	session.Printf("open %s in a browser and enter the code %s\n", terminal.OneLine(device.VerificationURI),
		terminal.OneLine(device.UserCode))
	tokens, err := provider.Config.DeviceAccessToken(ctx, device)
	if err != nil {
		return fmt.Errorf("signing in: %w", err)
	}
	return login.AcceptTokens(ctx, provider, tokens, "")
}

// signInByBrowser sends a browser of this machine to the issuer and waits until it comes back with a code, which it
// exchanges for tokens. PKCE, state and nonce bind the code to this run.
func signInByBrowser(ctx context.Context, session *terminal.Session, login *terminal.Login,
	provider *terminal.Provider) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for the browser: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, signInLimit)
	defer cancel()
	config := provider.Config
	config.RedirectURL = "http://" + l.Addr().String() + callbackPath
	back := callback{host: l.Addr().String(), state: rand.Text(), issuer: login.Issuer, answer: make(chan signInAnswer, 1)}
	server := &http.Server{Handler: &back, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		_ = server.Serve(l) // until Shutdown
	}()
	defer func() {
		limit, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = server.Shutdown(limit) // the browser gets its answer
		_ = server.Close()
		<-serving
	}()
	nonce, verifier := rand.Text(), oauth2.GenerateVerifier()
	where := config.AuthCodeURL(back.state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier))
	session.Printf("sign in with a browser on this machine; if none opens, open:\n  %s\n", where)
	openBrowser(ctx, where)
	select {
	case <-ctx.Done():
		return fmt.Errorf("nobody has signed in: %w; without a browser on this machine use: atoll login --device",
			context.Cause(ctx))
	case a := <-back.answer:
		if a.err != nil {
			return a.err
		}
		tokens, err := config.Exchange(ctx, a.code, oauth2.VerifierOption(verifier))
		if err != nil {
			return fmt.Errorf("signing in: %w", err)
		}
		return login.AcceptTokens(ctx, provider, tokens, nonce)
	}
}

const callbackPath = "/callback"

// signInAnswer is the result of a sign-in that the issuer sends by the browser: a code, or an error.
type signInAnswer struct {
	code string
	err  error
}

// callback serves the address to which the issuer sends the browser. The first request with the right state counts.
type callback struct {
	host, state, issuer string
	answer              chan signInAnswer
}

func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	q := r.URL.Query()
	switch {
	case r.Method != http.MethodGet || r.URL.Path != callbackPath || r.Host != c.host:
		http.NotFound(w, r)
		return
	case len(q["state"]) != 1 || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(c.state)) != 1:
		http.Error(w, "This is no answer to the sign-in that runs.", http.StatusBadRequest)
		return
	}
	var a signInAnswer
	switch {
	case q.Has("iss") && q.Get("iss") != c.issuer:
		a.err = fmt.Errorf("the answer is of another issuer: %s", terminal.OneLine(q.Get("iss")))
	case q.Has("error"):
		a.err = fmt.Errorf("the issuer refused: %s %s", terminal.OneLine(q.Get("error")),
			terminal.OneLine(q.Get("error_description")))
	case len(q["code"]) != 1 || q.Get("code") == "":
		a.err = errors.New("the answer of the issuer has no code")
	default:
		a.code = q.Get("code")
	}
	select {
	case c.answer <- a:
		fmt.Fprintln(w, "You can close this page and go on in the terminal.")
	default:
		http.Error(w, "The sign-in is over.", http.StatusConflict)
	}
}

// openBrowser opens an address in a browser: in the program of the variable BROWSER, or the desktop's. An error is
// none: the address is on the terminal.
func openBrowser(ctx context.Context, address string) {
	programs := []string{os.Getenv("BROWSER"), "xdg-open", "open"}
	for _, program := range programs {
		path, err := exec.LookPath(program)
		if program == "" || err != nil {
			continue
		}
		cmd := exec.CommandContext(context.WithoutCancel(ctx), path, address) // the browser goes on after the sign-in
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait() }()
			return
		}
	}
}
