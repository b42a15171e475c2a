package nodepool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits of what hosting reads of a plane in one call. A customer's administrator can create any number of pods on a
// node, and a plane that was taken over can answer anything.
const (
	podPage       = 20   // pods in memory at once; one has at most 1.5 MiB
	maxPodsOfNode = 2000 // a kubelet runs at most maxPods of them
	maxAnswer     = 32 << 20
)

// errManyPods is the error of a node that has more pods than maxPodsOfNode.
var errManyPods = errors.New("more pods than hosting reads of a node")

// errLongAnswer is the error of an answer with more than maxAnswer bytes.
var errLongAnswer = errors.New("the answer of the control plane is too long")

// podSelection selects pods of a node by a field selector.
type podSelection string

const (
	allPods  podSelection = ""
	livePods podSelection = ",status.phase!=Succeeded,status.phase!=Failed" // without pods that have ended
)

// eachPodOn calls visit with the metadata of each selected pod of a node, until visit returns an error. It keeps
// podPage pods in memory. After maxPodsOfNode pods it returns an errManyPods, when there are more.
func (s *watchedPlane) eachPodOn(ctx context.Context, n *node, selection podSelection,
	visit func(*metav1.PartialObjectMetadata) error) error {
	o := metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Metadata.Name + string(selection), Limit: podPage}
	for seen := 0; ; {
		page, err := s.pods.Resource(podResource()).List(ctx, o)
		if err != nil {
			return fmt.Errorf("listing the pods of node %s of %s: %w", n.Metadata.Name, s.cluster, err)
		}
		for i := range page.Items {
			if seen == maxPodsOfNode {
				return fmt.Errorf("node %s of %s: %w (%d)", n.Metadata.Name, s.cluster, errManyPods, maxPodsOfNode)
			}
			seen++
			if err := visit(&page.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// limitAnswers limits the bytes of each answer but those of watches, which are streams.
func limitAnswers(next http.RoundTripper) http.RoundTripper { return answerLimiter{next} }

type answerLimiter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l answerLimiter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if err == nil && request.URL.Query().Get("watch") == "" {
		response.Body = &limitedBody{ReadCloser: response.Body, left: maxAnswer}
	}
	return response, err
}

// limitedBody is a body that fails with errLongAnswer after its limit.
type limitedBody struct {
	io.ReadCloser
	left int64 // bytes that may still be read
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLongAnswer
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}
