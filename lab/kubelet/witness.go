// The lab's witness of a kubelet: asks its PodResources service, as Fairlead does, by Kubernetes' own generated code,
// so that what Fairlead's client reads is held against another's reading.
//
//	witness SOCKET list                   every pod with devices or CPUs of its own, a line of JSON each
//	witness SOCKET healthy                the healthy devices of each resource, as one object
//	witness SOCKET watch PREFIX N SECS    epoch milliseconds at which all resources of PREFIX together have N healthy devices
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "witness:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: witness SOCKET list|healthy|watch …")
	}
	connection, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	kubelet := v1.NewPodResourcesListerClient(connection)
	switch {
	case args[1] == "list":
		return list(kubelet)
	case args[1] == "healthy":
		devices, err := healthy(kubelet, time.Minute)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(devices)
	case args[1] == "watch" && len(args) == 5:
		wanted, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		seconds, err := strconv.Atoi(args[4])
		if err != nil {
			return err
		}
		return watch(kubelet, args[2], wanted, time.Duration(seconds)*time.Second)
	}
	return fmt.Errorf("unknown request %q", args[1:])
}

type device struct {
	ID   string `json:"id"`
	Node int64  `json:"node"`
}

// A device without a node is told as -1, as the kernel does.
func devices(of []*v1.ContainerDevices, into map[string][]device) {
	for _, d := range of {
		node := int64(-1)
		if nodes := d.GetTopology().GetNodes(); len(nodes) == 1 {
			node = nodes[0].GetID()
		}
		for _, id := range d.GetDeviceIds() {
			into[d.GetResourceName()] = append(into[d.GetResourceName()], device{id, node})
		}
	}
}

func list(kubelet v1.PodResourcesListerClient) error {
	context, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := kubelet.List(context, &v1.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	for _, pod := range answer.GetPodResources() {
		told := struct {
			Pod     string              `json:"pod"`
			Devices map[string][]device `json:"devices"`
			CPUs    []int64             `json:"cpus"`
		}{pod.GetName(), map[string][]device{}, []int64{}}
		for _, container := range pod.GetContainers() {
			devices(container.GetDevices(), told.Devices)
			told.CPUs = append(told.CPUs, container.GetCpuIds()...)
		}
		if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
			return err
		}
	}
	return nil
}

func healthy(kubelet v1.PodResourcesListerClient, limit time.Duration) (map[string][]device, error) {
	context, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer, err := kubelet.GetAllocatableResources(context, &v1.AllocatableResourcesRequest{})
	if err != nil {
		return nil, err
	}
	told := map[string][]device{}
	devices(answer.GetDevices(), told)
	return told, nil
}

// The service answers at most a hundred questions a second of all its clients together: it is asked forty times.
func watch(kubelet v1.PodResourcesListerClient, prefix string, wanted int, limit time.Duration) error {
	end, last := time.Now().Add(limit), -1
	for time.Now().Before(end) {
		if told, err := healthy(kubelet, time.Second); err == nil {
			last = 0
			for resource, devices := range told {
				if strings.HasPrefix(resource, prefix) {
					last += len(devices)
				}
			}
			if last == wanted {
				fmt.Println(time.Now().UnixMilli())
				return nil
			}
		}
		time.Sleep(25 * time.Millisecond)
	}
	return fmt.Errorf("%s has %d healthy devices, not %d, after %s", prefix, last, wanted, limit)
}
