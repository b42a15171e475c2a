package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Notifier sends notifications. A caller of the service chose their URI, so the Notifier sends only to
// hosts of its list, only by https unless Loopback permits http, and to no address of a private network.
type Notifier struct {
	// Hosts are the hosts that may be notified: management.azure.com, or .example.com for all hosts of
	// a domain.
	Hosts []string
	// Loopback permits http and addresses of this machine, for a region on one machine.
	Loopback bool

	Client *http.Client // nil: one that refuses private addresses and redirects
}

// Permits reports whether a notification may be sent to a URI.
func (n *Notifier) Permits(uri string) bool {
	u, err := url.Parse(uri)
	if err != nil || u.User != nil || u.Host == "" || u.Fragment != "" {
		return false
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && n.Loopback) {
		return false
	}
	host := strings.ToLower(u.Hostname())
	return slices.ContainsFunc(n.Hosts, func(allowed string) bool {
		return host == allowed || strings.HasPrefix(allowed, ".") && strings.HasSuffix(host, allowed)
	})
}

const notificationTimeout = 5 * time.Second

// client returns the client of one attempt. It checks each address after the name was resolved: it does not
// connect to a private address to which a permitted name resolves.
func (n *Notifier) client() *http.Client {
	if n.Client != nil {
		return n.Client
	}
	dialer := &net.Dialer{Timeout: notificationTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		ip := at.Addr().Unmap()
		if ip.IsLoopback() && n.Loopback {
			return nil
		}
		if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() {
			return fmt.Errorf("the address %s is not public", ip)
		}
		return nil
	}}
	return &http.Client{
		Timeout:       notificationTimeout,
		Transport:     &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Send sends one notification as a POST. Every answer but 2xx is an error.
func (n *Notifier) Send(ctx context.Context, uri string, body any) error {
	if !n.Permits(uri) {
		return errors.New("the notification URI is not permitted")
	}
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encoding a notification: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, uri, bytes.NewReader(data))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := n.client().Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("the receiver of the notification answered %s", answer.Status)
	}
	return nil
}

// sendNotification makes one attempt to send the notification of a terminal operation, and commits its
// outcome.
func (e *Engine) sendNotification(ctx context.Context, s State) (State, error) {
	event := Event{Kind: Notified, Fence: s.Fence}
	if err := e.o.Notifier.Send(ctx, s.NotificationURI, e.o.NotificationOf(s)); err != nil {
		event.Kind, event.Error = NotifyFailed, &Error{Code: "NotificationFailed", Message: err.Error()}
	}
	return e.commit(ctx, s.ID, event)
}
