package region

import "fmt"

// CLMAddress is the URL of the REST API of the cluster lifecycle manager.
func (h Home) CLMAddress() (string, error) {
	st, err := h.State()
	if err != nil {
		return "", err
	}
	if st.Ports["clm-http"] == 0 {
		return "", fmt.Errorf("%s: the region has no lifecycle manager yet; `atoll up` adds it", h.Dir)
	}
	return newTopology(h, st, Binaries{}).url("clm-http"), nil
}
