package main

import (
	"encoding/base64"
	"errors"
	"strings"
)

// kubeconfig has the parts of a kubeconfig that the program uses.
type kubeconfig struct {
	server, serverName string
	ca, certificate    []byte
}

// readKubeconfig reads a kubeconfig with one cluster and one user, whose members each stand in a line of
// their own. A program that manages clusters would use k8s.io/client-go.
func readKubeconfig(text string) (k kubeconfig, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimLeft(strings.TrimSpace(line), "- "), ": ")
		value = strings.Trim(value, `"`)
		switch name {
		case "server":
			k.server = value
		case "tls-server-name":
			k.serverName = value
		case "certificate-authority-data":
			k.ca, err = base64.StdEncoding.DecodeString(value)
		case "client-certificate-data":
			k.certificate, err = base64.StdEncoding.DecodeString(value)
		}
		if err != nil {
			return k, err
		}
	}
	if k.server == "" || k.ca == nil || k.certificate == nil {
		return k, errors.New("the kubeconfig lacks a server, a CA or a certificate")
	}
	return k, nil
}
