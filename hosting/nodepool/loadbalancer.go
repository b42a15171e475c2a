package nodepool

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/localnodes"
	"atoll.dev/hosting/loop"
)

// LoadBalancers give Services of clusters with local nodes addresses on this machine; localnodes.Machines implements
// it. All methods may be repeated.
type LoadBalancers interface {
	// ForwardService returns the Service's address, where its ports are forwarded to the cluster's nodes from now on.
	ForwardService(cluster controlplane.ID, service types.NamespacedName,
		ports []localnodes.ServicePort) (netip.Addr, error)
	// StopService ends the forwarding for a Service, and frees its address.
	StopService(cluster controlplane.ID, service types.NamespacedName)
	// StopServices does that for all Services of a cluster.
	StopServices(cluster controlplane.ID)
}

// Bounds of the Services of type LoadBalancer of one plane.
const (
	maxServices     = 100
	maxServicePorts = 20
)

func serviceResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "services"}
}

// service has the fields of a Service that hosting reads.
type service struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Class *string       `json:"loadBalancerClass,omitempty"`
		Ports []servicePort `json:"ports,omitempty"`
	} `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []ingress `json:"ingress,omitempty"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

type servicePort struct {
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	NodePort uint16 `json:"nodePort,omitempty"`
}

type ingress struct {
	IP string `json:"ip,omitempty"`
	// IPMode is Proxy: kube-proxy must not take the address for one of the nodes.
	IPMode string        `json:"ipMode,omitempty"`
	Ports  []ingressPort `json:"ports,omitempty"`
}

type ingressPort struct {
	Port     uint16  `json:"port"`
	Protocol string  `json:"protocol"`
	Error    *string `json:"error,omitempty"` // why the port is not forwarded
}

// servicesBound bounds which Services hosting reads: those of type LoadBalancer, and the fields of type service.
func servicesBound() *loop.Bound {
	return &loop.Bound{Fields: "spec.type=LoadBalancer", Most: maxServices, Trim: trimService}
}

// trimService removes from a Service all fields that type service does not have, and all ports after maxServicePorts.
func trimService(u *unstructured.Unstructured) {
	s, err := loop.Decode[service](u)
	if err != nil { // it is no Service: it has no ports
		s = &service{}
	}
	s.Metadata = metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(),
		ResourceVersion: u.GetResourceVersion(), DeletionTimestamp: u.GetDeletionTimestamp()}
	s.Spec.Ports = s.Spec.Ports[:min(len(s.Spec.Ports), maxServicePorts)]
	s.Status.LoadBalancer.Ingress = s.Status.LoadBalancer.Ingress[:min(len(s.Status.LoadBalancer.Ingress), 2)]
	data, err := json.Marshal(s)
	if err == nil {
		var object map[string]any
		if err = json.Unmarshal(data, &object); err == nil {
			object["apiVersion"], object["kind"] = "v1", "Service"
			u.Object = object
		}
	}
	if err != nil { // a decoded object can be encoded
		panic(err)
	}
}

// portsToForward returns the ports of a Service to forward: TCP ports with a node port. status has an entry for each
// port of the Service, with an error if the port is not forwarded. The port reserved is not: it is the router's, which
// could not listen on all addresses any more after a restart.
func portsToForward(s *service, reserved uint16) (forward []localnodes.ServicePort, status []ingressPort) {
	for _, p := range s.Spec.Ports {
		at := ingressPort{Port: p.Port, Protocol: p.Protocol}
		var problem string
		switch {
		case p.Protocol != "TCP":
			problem = "UnsupportedProtocol"
		case p.NodePort == 0:
			problem = "NoNodePort"
		case p.Port == reserved:
			problem = "PortReserved"
		default:
			forward = append(forward, localnodes.ServicePort{Port: p.Port, NodePort: p.NodePort})
		}
		if problem != "" {
			at.Error = &problem
		}
		status = append(status, at)
	}
	return forward, status
}

// routerPort returns the port of Options.Router; 0: none.
func (k *reconciler) routerPort() uint16 {
	_, port, err := net.SplitHostPort(k.o.Router)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// reconcileService is called after each change of a Service of type LoadBalancer. A Service with a class belongs to
// another implementation.
func (s *watchedPlane) reconcileService(ctx context.Context, key loop.Key,
	object *unstructured.Unstructured) (time.Duration, error) {
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
	balancers := s.reconciler.o.LoadBalancers
	if object == nil || object.GetDeletionTimestamp() != nil {
		balancers.StopService(s.cluster, name)
		return 0, nil
	}
	current, err := loop.Decode[service](object)
	if err != nil {
		return 0, err
	}
	if current.Spec.Class != nil {
		balancers.StopService(s.cluster, name)
		return 0, nil
	}
	forward, ports := portsToForward(current, s.reconciler.routerPort())
	wanted := []ingress{}
	if len(forward) == 0 {
		balancers.StopService(s.cluster, name)
	} else {
		address, err := balancers.ForwardService(s.cluster, name, forward)
		if err != nil {
			return 0, fmt.Errorf("the address of Service %s of %s: %w", name, s.cluster, err)
		}
		wanted = append(wanted, ingress{IP: address.String(), IPMode: "Proxy", Ports: ports})
	}
	if have := current.Status.LoadBalancer.Ingress; len(have) == len(wanted) && reflect.DeepEqual(append(wanted[:0:0],
		have...), wanted) {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": wanted}}})
	if err != nil {
		return 0, err
	}
	_, err = s.client.Resource(serviceResource()).Namespace(key.Namespace).Patch(ctx, key.Name, types.MergePatchType,
		patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("writing the address of Service %s of %s: %w", name, s.cluster, err)
	}
	return 0, nil
}

// watchServices gives the cluster's Services of type LoadBalancer their addresses until ctx ends, and then ends their
// forwarding. It begins when an earlier watch of the same cluster has ended.
func (s *watchedPlane) watchServices(ctx context.Context) {
	defer close(s.servicesEnded)
	if s.formerServices != nil {
		<-s.formerServices
	}
	services := loop.New(loop.Options{Client: s.client, Resource: serviceResource(), Reconcile: s.reconcileService,
		Workers: 1, Bound: servicesBound(), Log: s.reconciler.o.Log})
	_ = services.Run(ctx)
	s.reconciler.o.LoadBalancers.StopServices(s.cluster)
}
