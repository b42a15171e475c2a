//go:build realnodes

package realnodes

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"atoll.dev/test/testsite"
)

const balanced = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: "atoll.dev/demo:v1", imagePullPolicy: Never}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: 18088, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}]
`

// TestALoadBalancerServiceIsReachedFromTheMachine creates a Service and requests its pod by the address that the
// Service's status has.
func TestALoadBalancerServiceIsReachedFromTheMachine(t *testing.T) {
	w := newWorld(t, 0)
	w.apply(balanced)
	var address string
	testsite.EventuallyWithin(t, "the Service has an address", limit, func() error {
		var err error
		address, err = w.run("", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err == nil && !strings.HasPrefix(address, "127.77.") {
			err = fmt.Errorf("its address is %q", address)
		}
		return err
	})
	status, err := w.run("", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ports[*].error}")
	if err != nil || status != "UnsupportedProtocol" {
		t.Errorf("the ports' errors are %q, %v", status, err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	testsite.EventuallyWithin(t, "the pod answers on this machine", limit, func() error {
		res, err := client.Get("http://" + net.JoinHostPort(address, "18088") + "/")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err == nil && string(body) != "web\n" {
			err = fmt.Errorf("it answers %q", body)
		}
		return err
	})
	if _, err := w.run("", "delete", "service", "web"); err != nil {
		t.Fatal(err)
	}
	testsite.EventuallyWithin(t, "the address is free again", limit, func() error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, "18088"), time.Second)
		if err == nil {
			conn.Close()
			return fmt.Errorf("%s accepts connections", address)
		}
		return nil
	})
}
