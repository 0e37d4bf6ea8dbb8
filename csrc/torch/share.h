/* share.h - CUDA tensors handed to other processes. Private to csrc/torch. */
#ifndef TA_TORCH_SHARE_H
#define TA_TORCH_SHARE_H

/* What takes the place of torch's shareIpcHandle and getIpcDevPtr; NULL: not here. */
const void *ta_torch_share_function(void);
const void *ta_torch_take_function(void);

#endif
