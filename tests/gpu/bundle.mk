# A folder for a machine with a GPU, where nothing can be installed.
.PHONY: gpu-bundle
gpu-bundle: ## build/gpu: psd, the NCCL backend and tests for a machine with a GPU; start check-gpu.sh there
	@deploy/gpu-bundle.sh $(BUILD) $(BUILD)/gpu
